"""Compare methods that let a language model use more context than it was built for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from contextlab.harness.runner import bench as bench
    from contextlab.method import ContextMethod

__all__ = ["__version__", "bench", "load"]
__version__ = "0.1.0"


def load(
    method: str,
    backbone: str | PreTrainedModel = "smollm2-135m",
    device: str | None = None,
    dtype: str | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **settings: Any,
) -> ContextMethod:
    """A method on a backbone, ready to read.

    Args:
        method: a registered name, or `path.py:Class`.
        backbone: a name, hub id, folder or GGUF file; or a transformers model, which is used as it is.
        device: where a backbone given by name is put; chosen by the machine when None.
        dtype: of a backbone given by name; bfloat16 on a GPU and float32 on a CPU when None.
        tokenizer: of a backbone given as a model.
        **settings: fields of the method's configuration.

    Raises:
        UserError: for an unknown method, backbone or setting.
    """
    from contextlab import backbone as backbones
    from contextlab import registry
    from contextlab.method import build

    kind = registry.method_class(method)
    config = kind.Config.parse(settings)
    if isinstance(backbone, str):
        return build(kind, backbones.load(backbone, device=device, dtype=dtype), config)
    return build(kind, backbones.wrap(backbone, tokenizer=tokenizer), config)


def __getattr__(name: str) -> Any:
    # `bench` brings torch with it, and importing the package must stay cheap.
    if name == "bench":
        from contextlab.harness.runner import bench

        return bench
    raise AttributeError(f"module 'contextlab' has no attribute '{name}'")
