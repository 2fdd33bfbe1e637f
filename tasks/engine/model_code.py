"""Code in a model folder is never run: neither what config.json names, nor what SGLang itself would allow."""

from typing import Any, NoReturn

from tasks.engine.errors import ModelLoadError


def forbid_model_code() -> None:
    """Have transformers refuse to import code from a model folder in this process, whoever asks it to.

    SGLang asks for it in places where it was not allowed (srt/model_loader/loader.py of 0.5.17, for ModelOpt).
    """
    from transformers import dynamic_module_utils  # noqa: PLC0415 - it takes seconds

    dynamic_module_utils.get_class_in_module = _refuse


def _refuse(class_name: str, *_: Any, **__: Any) -> NoReturn:
    raise ModelLoadError(
        f"the model folder has code of its own ({class_name!r:.100}), which is never run; give a model that "
        "transformers and SGLang know"
    )
