# ruff: noqa: E501, RUF001 - texts are easier to compare in one piece, with the characters of DeepSeek's tokens
"""What a person would mark in the chats of `chat_fixtures`.

By fixture and family: for each sample the text of each run that is learnt, or the reason why it is rejected.
"""

SUPERVISED: dict[str, dict[str, list[list[str] | str]]] = {
    "single turn": {
        "smollm2": [["Hello, you.<|im_end|>"]],
        "qwen2.5": [["Hello, you.<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\nHello, you.<|im_end|>"]],
        "llama3": [["Hello, you.<|eot_id|>"]],
        "deepseek_v3": [["Hello, you.<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["Hello, you.<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["Hello, you.<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>Hello, you.<|return|>"]],
        "gemma": [["Hello, you.<end_of_turn>"]],
        "mistral": [["Hello, you.</s>"]],
    },
    "multi turn": {
        "smollm2": [["1<|im_end|>", "2<|im_end|>", "3<|im_end|>"]],
        "qwen2.5": [["1<|im_end|>", "2<|im_end|>", "3<|im_end|>"]],
        "qwen3": [
            ["<think>\n\n</think>\n\n1<|im_end|>"],
            ["<think>\n\n</think>\n\n2<|im_end|>"],
            ["<think>\n\n</think>\n\n3<|im_end|>"],
        ],
        "llama3": [["1<|eot_id|>", "2<|eot_id|>", "3<|eot_id|>"]],
        "deepseek_v3": [["1<｜end▁of▁sentence｜>", "2<｜end▁of▁sentence｜>", "3<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["1<｜end▁of▁sentence｜>", "2<｜end▁of▁sentence｜>", "3<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["1<|im_end|>", "2<|im_end|>", "3<|im_end|>"]],
        "gpt_oss": [
            ["<|channel|>final<|message|>1<|return|>"],
            ["<|channel|>final<|message|>2<|return|>"],
            ["<|channel|>final<|message|>3<|return|>"],
        ],
        "gemma": [["1<end_of_turn>", "2<end_of_turn>", "3<end_of_turn>"]],
        "mistral": [["1</s>", "2</s>", "3</s>"]],
    },
    "system prompt": {
        "smollm2": [["1<|im_end|>", "2<|im_end|>"]],
        "qwen2.5": [["1<|im_end|>", "2<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\n1<|im_end|>"], ["<think>\n\n</think>\n\n2<|im_end|>"]],
        "llama3": [["1<|eot_id|>", "2<|eot_id|>"]],
        "deepseek_v3": [["1<｜end▁of▁sentence｜>", "2<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["1<｜end▁of▁sentence｜>", "2<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["1<|im_end|>", "2<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>1<|return|>"], ["<|channel|>final<|message|>2<|return|>"]],
        "gemma": [["1<end_of_turn>", "2<end_of_turn>"]],
        "mistral": [["1</s>"], ["2</s>"]],
    },
    "tool call, arguments as an object": {
        "smollm2": [["Yes.<|im_end|>"]],
        "qwen2.5": [
            [
                '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call><|im_end|>',
                "Yes.<|im_end|>",
            ]
        ],
        "qwen3": [
            [
                '<think>\n\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call><|im_end|>'
            ],
            ["<think>\n\n</think>\n\nYes.<|im_end|>"],
        ],
        "llama3": [['{"name": "weather", "parameters": {"city": "Zürich"}}<|eot_id|>', "Yes.<|eot_id|>"]],
        "deepseek_v3": [
            [
                '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Zürich"}<｜tool▁call▁end｜><｜end▁of▁sentence｜>',
                "Yes.<｜end▁of▁sentence｜>",
            ]
        ],
        "deepseek_r1": ["template_error"],
        "kimi_k2": [
            [
                '<|tool_calls_section_begin|><|tool_call_begin|>weather:0<|tool_call_argument_begin|>{"city": "Zürich"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
                "Yes.<|im_end|>",
            ]
        ],
        "gpt_oss": [
            [
                ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Zürich"}<|call|>',
                "<|channel|>final<|message|>Yes.<|return|>",
            ]
        ],
        "gemma": ["template_error"],
        "mistral": [['[TOOL_CALLS]weather{"city": "Zürich"}</s>', "Yes.</s>"]],
    },
    "tool call, arguments as a string": {
        "smollm2": [["Yes.<|im_end|>"]],
        "qwen2.5": [
            [
                '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call><|im_end|>',
                "Yes.<|im_end|>",
            ]
        ],
        "qwen3": [
            [
                '<think>\n\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call><|im_end|>'
            ],
            ["<think>\n\n</think>\n\nYes.<|im_end|>"],
        ],
        "llama3": [['{"name": "weather", "parameters": {"city": "Zürich"}}<|eot_id|>', "Yes.<|eot_id|>"]],
        "deepseek_v3": [
            [
                '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Zürich"}<｜tool▁call▁end｜><｜end▁of▁sentence｜>',
                "Yes.<｜end▁of▁sentence｜>",
            ]
        ],
        "deepseek_r1": ["template_error"],
        "kimi_k2": [
            [
                '<|tool_calls_section_begin|><|tool_call_begin|>weather:0<|tool_call_argument_begin|>{"city": "Zürich"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
                "Yes.<|im_end|>",
            ]
        ],
        "gpt_oss": [
            [
                ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Zürich"}<|call|>',
                "<|channel|>final<|message|>Yes.<|return|>",
            ]
        ],
        "gemma": ["template_error"],
        "mistral": [['[TOOL_CALLS]weather{"city": "Zürich"}</s>', "Yes.</s>"]],
    },
    "thinking on turns 1 and 3": {
        "smollm2": [["a<|im_end|>", "b<|im_end|>", "c<|im_end|>"]],
        "qwen2.5": [["a<|im_end|>", "b<|im_end|>", "c<|im_end|>"]],
        "qwen3": [
            ["<think>\nfirst thought\n</think>\n\na<|im_end|>"],
            ["<think>\n\n</think>\n\nb<|im_end|>"],
            ["<think>\nthird thought\n</think>\n\nc<|im_end|>"],
        ],
        "llama3": [["a<|eot_id|>", "b<|eot_id|>", "c<|eot_id|>"]],
        "deepseek_v3": [["a<｜end▁of▁sentence｜>", "b<｜end▁of▁sentence｜>", "c<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["a<｜end▁of▁sentence｜>", "b<｜end▁of▁sentence｜>", "c<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["a<|im_end|>", "b<|im_end|>", "c<|im_end|>"]],
        "gpt_oss": [
            [
                "<|channel|>analysis<|message|>first thought<|end|><|start|>assistant<|channel|>final<|message|>a<|return|>"
            ],
            ["<|channel|>final<|message|>b<|return|>"],
            [
                "<|channel|>analysis<|message|>third thought<|end|><|start|>assistant<|channel|>final<|message|>c<|return|>"
            ],
        ],
        "gemma": [["a<end_of_turn>", "b<end_of_turn>", "c<end_of_turn>"]],
        "mistral": [["a</s>", "b</s>", "c</s>"]],
    },
    "thinking before a tool call": {
        "smollm2": [["No.<|im_end|>"]],
        "qwen2.5": [
            ['<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>', "No.<|im_end|>"]
        ],
        "qwen3": [
            [
                '<think>\nask\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>',
                "<think>\ntold\n</think>\n\nNo.<|im_end|>",
            ]
        ],
        "llama3": [['{"name": "weather", "parameters": {"city": "Oslo"}}<|eot_id|>', "No.<|eot_id|>"]],
        "deepseek_v3": [
            [
                '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜><｜end▁of▁sentence｜>',
                "No.<｜end▁of▁sentence｜>",
            ]
        ],
        "deepseek_r1": ["template_error"],
        "kimi_k2": [
            [
                '<|tool_calls_section_begin|><|tool_call_begin|>weather:0<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
                "No.<|im_end|>",
            ]
        ],
        "gpt_oss": [
            [
                '<|channel|>analysis<|message|>ask<|end|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>',
                "<|channel|>analysis<|message|>told<|end|><|start|>assistant<|channel|>final<|message|>No.<|return|>",
            ]
        ],
        "gemma": ["template_error"],
        "mistral": [['[TOOL_CALLS]weather{"city": "Oslo"}</s>', "No.</s>"]],
    },
    "orphan closing think tag": {
        "smollm2": [["hm</think>a<|im_end|>", "b<|im_end|>"]],
        "qwen2.5": [["hm</think>a<|im_end|>", "b<|im_end|>"]],
        "qwen3": [["<think>\nhm\n</think>\n\na<|im_end|>"], ["<think>\n\n</think>\n\nb<|im_end|>"]],
        "llama3": [["hm</think>a<|eot_id|>", "b<|eot_id|>"]],
        "deepseek_v3": [["hm</think>a<｜end▁of▁sentence｜>", "b<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["a<｜end▁of▁sentence｜>", "b<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["hm</think>a<|im_end|>", "b<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>hm</think>a<|return|>"], ["<|channel|>final<|message|>b<|return|>"]],
        "gemma": [["hm</think>a<end_of_turn>", "b<end_of_turn>"]],
        "mistral": [["hm</think>a</s>", "b</s>"]],
    },
    "empty assistant turn": {
        "smollm2": [["b<|im_end|>"]],
        "qwen2.5": [["b<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\nb<|im_end|>"]],
        "llama3": [["b<|eot_id|>"]],
        "deepseek_v3": [["b<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["b<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["b<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>b<|return|>"]],
        "gemma": [["b<end_of_turn>"]],
        "mistral": [["b</s>"]],
    },
    "two assistant turns in a row": {
        "smollm2": [["a<|im_end|>", "more<|im_end|>"]],
        "qwen2.5": [["a<|im_end|>", "more<|im_end|>"]],
        "qwen3": ["unstable_template"],
        "llama3": [["a<|eot_id|>", "more<|eot_id|>"]],
        "deepseek_v3": [["a<｜end▁of▁sentence｜>", "more<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["a<｜end▁of▁sentence｜>", "more<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["a<|im_end|>", "more<|im_end|>"]],
        "gpt_oss": ["unstable_template"],
        "gemma": ["template_error"],
        "mistral": [["a</s>more</s>"]],
    },
    "two user turns in a row": {
        "smollm2": [["a<|im_end|>"]],
        "qwen2.5": [["a<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\na<|im_end|>"]],
        "llama3": [["a<|eot_id|>"]],
        "deepseek_v3": [["a<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["a<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["a<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>a<|return|>"]],
        "gemma": ["template_error"],
        "mistral": [["a</s>"]],
    },
    "assistant first": {
        "smollm2": [["Welcome.<|im_end|>", "Hello.<|im_end|>"]],
        "qwen2.5": [["Welcome.<|im_end|>", "Hello.<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\nWelcome.<|im_end|>"], ["<think>\n\n</think>\n\nHello.<|im_end|>"]],
        "llama3": [["Welcome.<|eot_id|>", "Hello.<|eot_id|>"]],
        "deepseek_v3": [["Welcome.<｜end▁of▁sentence｜>", "Hello.<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["Welcome.<｜end▁of▁sentence｜>", "Hello.<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["Welcome.<|im_end|>", "Hello.<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>Welcome.<|return|>"], ["<|channel|>final<|message|>Hello.<|return|>"]],
        "gemma": ["template_error"],
        "mistral": [["Welcome.</s>", "Hello.</s>"]],
    },
    "ends with the user": {
        "smollm2": [["a<|im_end|>"]],
        "qwen2.5": [["a<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\na<|im_end|>"]],
        "llama3": [["a<|eot_id|>"]],
        "deepseek_v3": [["a<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["a<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["a<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>a<|return|>"]],
        "gemma": [["a<end_of_turn>"]],
        "mistral": [["a</s>"]],
    },
    "null content": {
        "smollm2": [["b<|im_end|>"]],
        "qwen2.5": [["b<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\nb<|im_end|>"]],
        "llama3": [["b<|eot_id|>"]],
        "deepseek_v3": [["b<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["b<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["b<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>b<|return|>"]],
        "gemma": [["b<end_of_turn>"]],
        "mistral": [["b</s>"]],
    },
    "content parts": {
        "smollm2": [["B<|im_end|>"]],
        "qwen2.5": [["B<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\nB<|im_end|>"]],
        "llama3": [["B<|eot_id|>"]],
        "deepseek_v3": [["B<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["B<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["B<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>B<|return|>"]],
        "gemma": [["B<end_of_turn>"]],
        "mistral": [["B</s>"]],
    },
    "unicode, emoji, CRLF and NUL": {
        "smollm2": [["Zürich 🦅\r\nnaïve\x00你好 end<|im_end|>"]],
        "qwen2.5": [["Zürich 🦅\r\nnaïve\x00你好 end<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\nZürich 🦅\r\nnaïve\x00你好 end<|im_end|>"]],
        "llama3": [["Zürich 🦅\r\nnaïve\x00你好 end<|eot_id|>"]],
        "deepseek_v3": [["Zürich 🦅\r\nnaïve\x00你好 end<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["Zürich 🦅\r\nnaïve\x00你好 end<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["Zürich 🦅\r\nnaïve\x00你好 end<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>Zürich 🦅\r\nnaïve\x00你好 end<|return|>"]],
        "gemma": [["Zürich 🦅\r\nnaïve\x00你好 end<end_of_turn>"]],
        "mistral": [["Zürich 🦅\r\nnaïve\x00你好 end</s>"]],
    },
    "white space around": {
        "smollm2": [[" a\n<|im_end|>", "b<|im_end|>"]],
        "qwen2.5": [[" a\n<|im_end|>", "b<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\n a\n<|im_end|>"], ["<think>\n\n</think>\n\nb<|im_end|>"]],
        "llama3": [["a<|eot_id|>", "b<|eot_id|>"]],
        "deepseek_v3": [["\n a\n<｜end▁of▁sentence｜>", "b<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["\n a\n<｜end▁of▁sentence｜>", "b<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["\n a\n<|im_end|>", "b<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>\n a\n<|return|>"], ["<|channel|>final<|message|>b<|return|>"]],
        "gemma": [["a<end_of_turn>", "b<end_of_turn>"]],
        "mistral": [["\n a\n</s>", "b</s>"]],
    },
    "one token": {
        "smollm2": [["a<|im_end|>"]],
        "qwen2.5": [["a<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\na<|im_end|>"]],
        "llama3": [["a<|eot_id|>"]],
        "deepseek_v3": [["a<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["a<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["a<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>a<|return|>"]],
        "gemma": [["a<end_of_turn>"]],
        "mistral": [["a</s>"]],
    },
    "the answer in the question": {
        "smollm2": [["a<|im_end|>", "a<|im_end|>"]],
        "qwen2.5": [["a<|im_end|>", "a<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\na<|im_end|>"], ["<think>\n\n</think>\n\na<|im_end|>"]],
        "llama3": [["a<|eot_id|>", "a<|eot_id|>"]],
        "deepseek_v3": [["a<｜end▁of▁sentence｜>", "a<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["a<｜end▁of▁sentence｜>", "a<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["a<|im_end|>", "a<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>a<|return|>"], ["<|channel|>final<|message|>a<|return|>"]],
        "gemma": [["a<end_of_turn>", "a<end_of_turn>"]],
        "mistral": [["a</s>", "a</s>"]],
    },
    "special tokens in the question": {
        "smollm2": [["real<|im_end|>"]],
        "qwen2.5": [["real<|im_end|>"]],
        "qwen3": [["<think>\n\n</think>\n\nreal<|im_end|>"]],
        "llama3": [["real<|eot_id|>"]],
        "deepseek_v3": [["real<｜end▁of▁sentence｜>"]],
        "deepseek_r1": [["real<｜end▁of▁sentence｜>"]],
        "kimi_k2": [["real<|im_end|>"]],
        "gpt_oss": [["<|channel|>final<|message|>real<|return|>"]],
        "gemma": [["real<end_of_turn>"]],
        "mistral": [["real</s>"]],
    },
}
