"""Settings for the whole suite. Fixtures live beside the tests that use them."""

from hypothesis import settings

# No deadline: two busy cores make any example slow now and then, and a slow example is not a wrong one.
settings.register_profile("gateway", deadline=None)
settings.load_profile("gateway")
