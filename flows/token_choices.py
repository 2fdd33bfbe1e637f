"""Settings of tokens as the steps take them."""

from flows.token_settings import TokenSettings
from tasks.inputs.shapes import ShapeRules
from tasks.supervision import ASSISTANT, Supervision
from tasks.token_options import TokenOptions


def make_options(settings: TokenSettings, context_length: int) -> TokenOptions:
    """Return what is made of the data; no sample is longer than the model's context."""
    return TokenOptions(
        max_length=min(settings.max_length or context_length, context_length),
        too_long=settings.too_long,
        data_format=None if settings.data_format == "auto" else settings.data_format,
        shape=ShapeRules(
            None if settings.shape == "auto" else settings.shape, settings.columns or {}, settings.role_names or {}
        ),
        chat_template=settings.chat_template,
        template_kwargs=settings.template_kwargs or {},
        template_date=settings.template_date,
        supervision=Supervision(settings.turns, settings.role_weights or {ASSISTANT: 1.0}, settings.end_of_turn),
        min_supervised_tokens=settings.min_supervised_tokens,
        duplicates=settings.duplicates,
        max_total_tokens=settings.max_total_tokens,
        sample_fraction=settings.sample_fraction,
        sample_seed=settings.sample_seed,
        cut_off=settings.cut_off,
        reject_content=settings.reject_content,
    )
