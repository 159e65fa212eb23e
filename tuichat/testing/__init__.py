"""PUBLIC: the conformance kit for backends.

A backend's own tests inherit ``BackendContract`` and override its fixtures; ``drawn_image`` makes
images to ask about. Needs pytest.
"""

import pytest

pytest.register_assert_rewrite("tuichat.testing.contract")

from tuichat.testing.contract import BackendContract  # noqa: E402  (after the line above)
from tuichat.testing.material import Switch, drawn_image  # noqa: E402

__all__ = ["BackendContract", "Switch", "drawn_image"]
