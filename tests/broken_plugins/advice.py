"""Answers an ImportError with advice that hides the package that is missing."""

try:
    import unrelated_package_that_is_missing  # noqa: F401
except ImportError:
    raise RuntimeError("please install the extra 'all'")  # noqa: B904
