"""Where the files that ship with the program lie: presets, prompts, reference."""

from pathlib import Path

import gateway


def find_config_folder() -> Path:
    """Inside the package where it was installed from a wheel, else beside it, in a checkout."""
    package = Path(gateway.__file__).parent
    inside = package / "config"
    return inside if inside.is_dir() else package.parent / "config"
