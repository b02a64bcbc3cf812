"""Questions to the hub. Each failure gets a message of ours: the hub's own may hold a token."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.errors import InterruptedRunError, ModelError, OfflineError, RunnerError
from runner.model.pipeline_index import INDEX
from runner.model.spec import ModelSpec

__all__ = ["ask_hub", "cached_file", "commit_of"]

PAUSES_S = (2.0, 8.0)  # before a question is asked again that the hub had no time for
LONGEST_PAUSE_S = 60.0  # that the hub may ask for
TOO_MANY = 429
COMMIT = re.compile(r"[0-9a-f]{40}")
TOKEN = re.compile(r"hf_\w+")


def ask_hub(spec: ModelSpec, ask: Callable[[Any], Any]) -> Any:
    """What `ask` returns of the module `huggingface_hub`. Raises ModelError for what stays so,
    OfflineError without a network, InterruptedRunError where the hub may answer later."""
    import huggingface_hub

    for pause in (*PAUSES_S, None):
        try:
            return ask(huggingface_hub)
        except RunnerError:
            raise
        except Exception as error:
            status = _status(error)
            if status is None or not _may_answer_later(status):
                raise _refusal(spec, error, status) from None
            if pause is None:
                raise _busy(spec.id, status) from None
            wanted = _retry_after(error)
        time.sleep(max(pause, min(wanted, LONGEST_PAUSE_S)))
    raise AssertionError("the last pause is None")


def cached_file(spec: ModelSpec, file: str) -> Path | None:
    """A file of the repository in the cache, or None. Does not ask the hub."""
    found = ask_hub(
        spec, lambda hub: hub.try_to_load_from_cache(spec.id, file, revision=spec.revision)
    )
    return Path(found) if isinstance(found, str) else None


def commit_of(spec: ModelSpec, file: str) -> str:
    """The revision as a commit: that of `file` in the cache, else the hub is asked. Raises
    ModelError: gated, not found, no such revision; OfflineError."""
    if spec.revision is not None and COMMIT.fullmatch(spec.revision):
        return spec.revision
    cached = cached_file(spec, file)
    if cached is not None:
        return cached.parents[len(Path(file).parts) - 1].name  # the cache has a folder a commit
    info = ask_hub(spec, lambda hub: hub.HfApi().model_info(spec.id, revision=spec.revision))
    return str(info.sha)


def _response(error: BaseException | None) -> Any:
    """The hub's answer that led to an error, which may be the cause of the error."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return response
        error = error.__cause__ or error.__context__
    return None


def _status(error: Exception) -> int | None:
    status = getattr(_response(error), "status_code", None)
    return status if isinstance(status, int) else None


def _retry_after(error: Exception) -> float:
    """The seconds that the hub asks to wait."""
    words = getattr(_response(error), "headers", {}).get("Retry-After", "")
    return float(words) if words.isdecimal() else 0.0


def _may_answer_later(status: int) -> bool:
    return status == TOO_MANY or status >= 500


def _busy(name: str, status: int) -> InterruptedRunError:
    why = "asks to wait" if status == TOO_MANY else "has an error"
    return InterruptedRunError(
        f"{name}: the hub {why} (HTTP {status}); run the same command again later"
    )


def _refusal(spec: ModelSpec, error: Exception, status: int | None) -> Exception:
    """What to raise for an error; the error itself where it is a bug."""
    from huggingface_hub import errors

    name = spec.id
    log_in = "log in again: hf auth login, or set HF_TOKEN"
    private = f"{name}: no such model on the hub, or private and HF_TOKEN gives no access"
    by_kind: dict[type[Exception], str] = {
        errors.GatedRepoError: (
            f"{name}: gated; accept its terms at https://huggingface.co/{name} and set HF_TOKEN"
        ),
        errors.RevisionNotFoundError: f"{name}: no revision {spec.revision}",
        errors.HFValidationError: f"{name}: neither a folder nor a hub ID (owner/name)",
    }
    by_status = {
        401: f"{name}: no such model on the hub, or the token is not valid; {log_in}",
        403: f"{name}: this token may not read it; {log_in}",
        404: private,
    }
    for kind, words in by_kind.items():
        if isinstance(error, kind):
            return ModelError(words)
    if isinstance(error, errors.RepositoryNotFoundError) and status != 401:
        return ModelError(private)
    if isinstance(error, errors.EntryNotFoundError) and status == 404:
        return ModelError(f"{name}: no {INDEX}; not a diffusers pipeline")
    if status in by_status:
        return ModelError(by_status[status])
    return _without_answer(name, error, status)


def _without_answer(name: str, error: Exception, status: int | None) -> Exception:
    """The hub was not reached, or it was not the hub that answered."""
    remedy = f"download it where there is a network: hf download {name}"
    library = type(error).__module__.partition(".")[0]
    if type(error) in (OSError, ValueError):  # of diffusers, which has read the answer
        lines = str(error).splitlines() or [""]
        return ModelError(f"{name}: cannot be downloaded: {TOKEN.sub('hf_…', lines[0])}")
    if status is not None:
        return ModelError(f"{name}: the hub refused the question (HTTP {status})")
    if isinstance(error, OSError) or library.startswith(("httpx", "httpcore")):
        kind = type(error).__name__
        return OfflineError(
            f"{name}: not in the cache, and the hub cannot be reached ({kind}); {remedy}"
        )
    if isinstance(error, ValueError | KeyError | TypeError):
        return OfflineError(
            f"{name}: not in the cache, and what answered was not the hub (a proxy, or a page to "
            f"log in?); {remedy}"
        )
    return error
