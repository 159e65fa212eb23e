"""Errors that are made for people.

Owns the exception types whose text a person reads. Invariant: ``str(error)`` is one sentence that
says what happened, to which file or component, and what to do; the details belong in the log.
"""

from __future__ import annotations


class TuichatError(Exception):
    """Base of every error whose text may be shown as it is."""


class BackendError(TuichatError):
    """A backend could not be found, described, imported or used."""


class ModelNotAvailable(BackendError):
    """The model's files are not on this machine and cannot be fetched, or are not a model."""


class PromptTooLong(BackendError):
    """The newest turn alone does not fit the model's context."""


class GenerationError(BackendError):
    """The model failed while it was answering."""


class ImageRefused(TuichatError):
    """A file cannot be attached: the text names the file, the reason and the cure."""


class StoreError(TuichatError):
    """The store cannot be read or written."""


class SessionNotFound(StoreError):
    """No session has that id; the text offers near ones."""


class WorkerError(TuichatError):
    """The worker process could not be started, or is gone."""
