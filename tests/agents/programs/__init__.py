"""Small agents around SDKs. Each runs in the SDK's own venv: `GATEWAY_URL` and the user's prompts come in."""
