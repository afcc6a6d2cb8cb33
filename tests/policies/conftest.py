"""Property tests of the policy are about right and wrong, not about time: the machine may be busy."""

from hypothesis import settings

settings.register_profile("policies", deadline=None)
settings.load_profile("policies")
