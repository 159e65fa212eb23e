"""Backend `llava`."""
