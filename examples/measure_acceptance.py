"""How many tokens a forward of the target makes with a drafter: greedy speculative decoding of chats' first answers.

    python examples/measure_acceptance.py drafter.pt chats.jsonl --model MODEL

Chats as `aerie extract` reads them: JSON Lines with `messages`. Take some that the drafter was not trained on.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from eagle3 import Draft, Drafter
from speculation import acceptance_length, decode
from train_eagle3 import load_target
from transformers import AutoTokenizer


def main() -> None:
    """Decode each prompt and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("chats", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument("--num-new", type=int, default=96, help="tokens of each answer")
    parser.add_argument("--num-drafts", type=int, default=4, help="guesses a forward of the target")
    options = parser.parse_args()
    target = load_target(options.model)
    drafter = Drafter.load(options.drafter, target)
    prompts = read_prompts(options.chats, options.model)
    accepted = measure(target, drafter, prompts, drafter.layers, options.num_new, options.num_drafts)
    print(json.dumps(summarize(accepted, options.num_drafts)))


def read_prompts(chats: Path, model: Path) -> list[list[int]]:
    """Return the token ids of each chat up to where the first answer begins."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = []
    for line in chats.read_text("utf-8").splitlines():
        messages = json.loads(line)["messages"]
        until = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        text = tokenizer.apply_chat_template(messages[:until], tokenize=False, add_generation_prompt=True)
        prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    return prompts


def measure(
    target: Any,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    layers: Sequence[int],
    num_new: int,
    num_drafts: int,
    draft: type[Draft] = Draft,
) -> list[int]:
    """Return of each forward of the target, over all prompts, how many guesses it confirmed."""
    decoded = (
        decode(target, draft(drafter), prompt, layers, num_new=num_new, num_drafts=num_drafts) for prompt in prompts
    )
    return [count for each in decoded for count in each.accepted]


def summarize(accepted: Sequence[int], num_drafts: int) -> dict[str, Any]:
    """Return the acceptance length, and of each guess how often it was right where those before it were."""
    reached = [sum(count >= place for count in accepted) for place in range(num_drafts + 1)]
    return {
        "acceptance_length": round(acceptance_length(accepted), 3),
        "right": [round(after / before, 3) if before else None for before, after in pairwise(reached)],
        "forwards": len(accepted),
    }


if __name__ == "__main__":
    main()
