# ruff: noqa: E501, RUF001 - templates, with the characters of DeepSeek's tokens
"""Minimal chat templates, our own, that treat turns as those of the families do of which they bear the name.

Each with the special tokens of its family, which are added to SmolLM2's tokenizer.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tasks.tokenizer_sources import TokenizerSource

# Qwen-2.5 and SmolLM2: every turn stays as it was written; a default system prompt.
CHATML = """
{%- if messages[0].role != 'system' and not tools %}<|im_start|>system
You are helpful.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

TOOL_CALLS = """
{%- macro calls(message) %}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first else '' }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endmacro %}"""

QWEN25 = (
    TOOL_CALLS
    + """
{%- set own = messages[0].content if messages[0]['role'] == 'system' else 'You are helpful.' %}<|im_start|>system
{{ own }}
{%- if tools %}

<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>{% endif %}<|im_end|>
{% for message in messages if message.role != 'system' %}
{%- if message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ message.role }}
{{ message.content }}{{ calls(message) }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
)

# Qwen3: thinking stays only behind the last question; the last turn has an empty one where it has none.
QWEN3 = (
    TOOL_CALLS
    + """
{%- set ns = namespace(last_query=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last_query = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ content }}
</tool_response><|im_end|>
{% elif message.role != 'assistant' %}<|im_start|>{{ message.role }}
{{ content }}<|im_end|>
{% else %}
{%- set thought = message.reasoning_content or '' %}
{%- if not thought and '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}<|im_start|>assistant
{% if loop.index0 > ns.last_query and (loop.last or thought) %}<think>
{{ thought.strip('\\n') }}
</think>

{% endif %}{{ content.lstrip('\\n') }}{{ calls(message) }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
)

# Llama 3: contents are trimmed; the date of today unless it is told; one tool call a turn.
LLAMA3 = """{{ bos_token }}
{%- set today = date_string if date_string is defined else strftime_now('%d %b %Y') -%}
<|start_header_id|>system<|end_header_id|>

Today Date: {{ today }}

{{ messages[0].content | trim if messages[0]['role'] == 'system' else '' }}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}<|eot_id|>
{%- for message in messages if message.role != 'system' %}
{%- set role = 'ipython' if message.role == 'tool' else message.role -%}
<|start_header_id|>{{ role }}<|end_header_id|>

{% if message.tool_calls %}
{%- if message.tool_calls | length > 1 %}{{ raise_exception('one tool call at once') }}{% endif %}
{%- set function = message.tool_calls[0].function -%}
{"name": "{{ function.name }}", "parameters": {{ function.arguments | tojson }}}
{%- else %}{{ message.content | trim }}{% endif %}<|eot_id|>
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

# DeepSeek-V3: system prompts come first, whatever their place.
DEEPSEEK_V3 = """{{ bos_token }}
{%- for message in messages if message.role == 'system' %}{{ message.content }}{% endfor %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'user' %}<｜User｜>{{ message.content }}
{%- elif message.role == 'tool' %}<｜tool▁output▁begin｜>{{ message.content }}<｜tool▁output▁end｜>
{%- else %}{{ '<｜Assistant｜>' if loop.first or loop.previtem.role != 'tool' else '' }}{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<｜tool▁call▁begin｜>{{ call.function.name }}<｜tool▁sep｜>{{ call.function.arguments | tojson }}<｜tool▁call▁end｜>
{%- endfor %}<｜end▁of▁sentence｜>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}<｜Assistant｜>{% endif %}"""

# DeepSeek-R1: all thinking goes, and the prompt begins a new one.
DEEPSEEK_R1 = """{{ bos_token }}
{%- for message in messages if message.role == 'system' %}{{ message.content }}{% endfor %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'user' %}<｜User｜>{{ message.content }}
{%- elif message.role == 'tool' %}{{ raise_exception('no tools') }}
{%- else %}<｜Assistant｜>{{ message.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<｜Assistant｜><think>
{% endif %}"""

# Kimi-K2: a default system prompt, arguments as they are.
KIMI_K2 = """
{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}
{%- if messages[0].role != 'system' %}<|im_system|>system<|im_middle|>You are Kimi.<|im_end|>{% endif %}
{%- for message in messages %}
{%- set head = {'user': '<|im_user|>', 'assistant': '<|im_assistant|>'}.get(message.role, '<|im_system|>') %}
{{- head }}{{ message.role }}<|im_middle|>
{%- if message.role == 'tool' %}## Return of {{ message.tool_call_id }}
{% endif %}
{{- message.content }}
{%- if message.tool_calls %}<|tool_calls_section_begin|>
{%- for call in message.tool_calls -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
{%- if call.function.arguments is string %}{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif -%}
<|tool_call_end|>
{%- endfor %}<|tool_calls_section_end|>{% endif %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"""

# gpt-oss: channels; the last answer ends with another token than those before, whose thinking goes.
HARMONY = """<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}<|end|>
{%- for message in messages %}
{%- set is_last = loop.last %}
{%- if message.role == 'assistant' %}
{%- if message.tool_calls %}
{%- if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}
{%- set function = message.tool_calls[0].function -%}
<|start|>assistant to=functions.{{ function.name }}<|channel|>commentary json<|message|>
{{- function.arguments | tojson }}<|call|>
{%- else %}
{%- if is_last and message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}{{ '<|return|>' if is_last else '<|end|>' }}
{%- endif %}
{%- elif message.role == 'tool' %}<|start|>functions to=assistant<|channel|>commentary<|message|>{{ message.content | tojson }}<|end|>
{%- else %}<|start|>{{ 'developer' if message.role == 'system' else message.role }}<|message|>{{ message.content }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""

# Gemma: roles must take turns, a system prompt joins the first question, contents may come in parts.
GEMMA = """{{ bos_token }}
{%- set first = messages[0].content + '\\n\\n' if messages[0].role == 'system' and messages[0].content is string else '' %}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- for message in rest %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate user and assistant') }}{% endif -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ first if loop.first else '' }}
{%- if message.content is string %}{{ message.content | trim }}
{%- else %}{% for item in message['content'] %}{{ item.text | trim }}{% endfor %}
{%- endif %}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"""

# Mistral: no prompt for the assistant; system prompt and tools stand with the last question.
MISTRAL = """{{ bos_token }}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- set rest = messages[1:] if system else messages %}
{%- set ns = namespace(last_user=-1) %}
{%- for message in rest %}{% if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in rest %}
{%- if message.role == 'user' %}
{%- if tools and loop.index0 == ns.last_user %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif -%}
[INST]{{ system if loop.index0 == ns.last_user else '' }}{{ message.content }}[/INST]
{%- elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- elif message.tool_calls %}[TOOL_CALLS]
{%- for call in message.tool_calls %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{{ eos_token }}
{%- else %}{{ message.content }}{{ eos_token }}
{%- endif %}
{%- endfor %}"""


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, and what else it is given."""

    template: str
    tokens: tuple[str, ...] = ()
    variables: dict[str, Any] = field(default_factory=dict)


_QWEN_WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_DEEPSEEK = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)
_DEEPSEEK_BOS = {"bos_token": _DEEPSEEK[0], "eos_token": _DEEPSEEK[1]}
FAMILIES = {
    "smollm2": Family(CHATML),
    "qwen2.5": Family(QWEN25, (), {}),
    "qwen3": Family(QWEN3),
    "llama3": Family(
        LLAMA3,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        {"bos_token": "<|begin_of_text|>"},
    ),
    "deepseek_v3": Family(DEEPSEEK_V3, _DEEPSEEK, _DEEPSEEK_BOS),
    "deepseek_r1": Family(DEEPSEEK_R1, _DEEPSEEK, _DEEPSEEK_BOS),
    "kimi_k2": Family(
        KIMI_K2,
        (
            *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ),
    ),
    "gpt_oss": Family(HARMONY, ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>")),
    "gemma": Family(GEMMA, ("<bos>", "<start_of_turn>", "<end_of_turn>"), {"bos_token": "<bos>"}),
    "mistral": Family(
        MISTRAL,
        (
            *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"),
        ),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
}


@cache
def make_source(name: str, model: Path) -> TokenizerSource:
    """Return the tokenizer of a family: that of `model` with the family's special tokens and template."""
    family = FAMILIES[name]
    backend = Tokenizer.from_file(str(model / "tokenizer.json"))
    backend.post_processor = None
    backend.add_special_tokens(list(family.tokens))
    if name == "qwen3":
        backend.add_tokens([AddedToken(word, special=False, normalized=False) for word in _QWEN_WORDS])
    return TokenizerSource(backend, None, family.template, family.template, family.variables)
