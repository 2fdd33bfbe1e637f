"""Let a model answer prompts itself: a drafter learns best from what its target says.

    python examples/answer_prompts.py chats.jsonl --model MODEL --invent 400
    python examples/answer_prompts.py chats.jsonl --model MODEL --prompts prompts.jsonl

Prompts are the first turns of the chats in a file, or are invented by the model: asked to go on where a turn of the
user begins, a model that was trained on chats writes what users write. What is written is as `aerie extract` reads it.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

Messages = list[dict[str, str]]
PLACE = "<here>"
# Of an invented prompt; a longer one is left out.
PROMPT_TOKENS = 96


def main() -> None:
    """Write answers batch by batch, the last turn of each chat."""
    options = parse_options()
    torch.manual_seed(options.seed)
    writer = Writer(options.model, options.temperature, torch.device(options.device))
    with options.out.open("w", encoding="utf-8") as file:
        for chats in batched_prompts(writer, options):
            for messages, answer in zip(chats, writer.answer(chats, options.max_new_tokens), strict=True):
                if answer:
                    line = {"messages": [*messages, {"role": "assistant", "content": answer}]}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()


def parse_options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompts", type=Path, help="JSON Lines with `messages`")
    source.add_argument("--invent", type=int, metavar="N", help="let the model invent N prompts")
    parser.add_argument("--batch", type=int, default=32, help="chats at a time")
    parser.add_argument("--max-new-tokens", type=int, default=192)
    parser.add_argument("--temperature", type=float, default=0.7, help="of the answers; 0 is greedy")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def batched_prompts(writer: "Writer", options: argparse.Namespace) -> Iterator[list[Messages]]:
    """Yield the chats to be answered, each up to a turn of the user."""
    if options.invent is not None:
        for start in range(0, options.invent, options.batch):
            yield writer.invent(min(options.batch, options.invent - start))
        return
    rows = [json.loads(line)["messages"] for line in options.prompts.read_text("utf-8").splitlines()]
    chats = [messages[: 1 + next(i for i, m in enumerate(messages) if m["role"] == "user")] for messages in rows]
    for start in range(0, len(chats), options.batch):
        yield chats[start : start + options.batch]


class Writer:
    """A model that writes turns, many at a time, in its own dtype."""

    def __init__(self, folder: Path, temperature: float, device: torch.device) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device).eval()
        self._temperature = temperature

    def invent(self, count: int) -> list[Messages]:
        """Return up to `count` chats of one turn of the user, each different."""
        opening, _, _ = self._render([{"role": "user", "content": PLACE}]).partition(PLACE)
        turns = self._write([opening] * count, PROMPT_TOKENS, 1.0, only_ended=True)
        return [[{"role": "user", "content": turn}] for turn in dict.fromkeys(turns) if turn]

    def answer(self, chats: list[Messages], max_new_tokens: int) -> list[str]:
        """Return the next turn of each chat."""
        texts = [self._render(chat, add_generation_prompt=True) for chat in chats]
        return self._write(texts, max_new_tokens, self._temperature)

    def _render(self, messages: Messages, **options: Any) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, **options))

    @torch.inference_mode()
    def _write(self, texts: list[str], limit: int, temperature: float, *, only_ended: bool = False) -> list[str]:
        given = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        written: Tensor = self._model.generate(**given.to(self._model.device), max_new_tokens=limit, **sampling)
        new = written[:, given["input_ids"].shape[1] :]
        if only_ended:
            new = new[(new == self._tokenizer.eos_token_id).any(dim=1)]
        return [text.strip() for text in self._tokenizer.batch_decode(new, skip_special_tokens=True)]


if __name__ == "__main__":
    main()
