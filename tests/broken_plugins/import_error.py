"""Its import fails for a package that has nothing to do with tuichat."""

import unrelated_package_that_is_missing  # noqa: F401
