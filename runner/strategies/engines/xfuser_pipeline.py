"""How the runner calls xfuser's pipelines."""

from typing import Any

__all__ = ["XfuserPipeline"]


class XfuserPipeline:
    """xfuser's pipeline as the runner calls it. It takes no callback, which PipeFusion would call
    on one stage only; so a stop waits for the end of the image."""

    def __init__(self, pipe: Any, warmup_steps: int, *, asks_size: bool) -> None:
        self.pipe = pipe
        self.warmup_steps = warmup_steps
        self.asks_size = asks_size

    @property
    def components(self) -> Any:
        return self.pipe.components

    def set_progress_bar_config(self, **settings: Any) -> None:
        self.pipe.set_progress_bar_config(**settings)

    def __call__(self, prompt: Any, **parameters: Any) -> Any:
        """The images (B, C, H, W); a wrapped pipeline gives None on all ranks but the last."""
        from xfuser.core.distributed import get_runtime_state

        state = get_runtime_state()
        # xfuser lowers it for an image of few steps, and leaves it so.
        state.runtime_config.warmup_steps = self.warmup_steps
        # Else PipeFusion would not make its buffers anew for a text of another length.
        state.ready = False
        if self.asks_size:
            names = ("height", "width", "num_inference_steps")
            state.set_input_parameters(
                batch_size=1 if isinstance(prompt, str) else len(prompt),
                max_condition_sequence_length=parameters.get("max_sequence_length", 512),
                **{name: parameters[name] for name in names if name in parameters},
            )
        return self.pipe(prompt=prompt, **parameters)
