"""Why a row of the data cannot be used, and what to do about it."""

from typing import Self

REASONS: dict[str, str] = {
    "invalid_unicode": "the row is not UTF-8, or has an unpaired surrogate; write it as UTF-8 again",
    "invalid_json": "each row must be one JSON object, in JSON Lines each on a line of its own",
    "too_big": "cut the row into several",
    "not_an_object": "each row must be a JSON object",
    "no_messages": "the row has not what the shape of its file needs: a list of messages, a prompt and a response, a "
    "text, or input_ids; name them with shape and columns",
    "bad_message": "each message must be an object with a role and a text; mind null contents, arguments of tool calls "
    "that are no JSON object, and role names (role_names)",
    "not_text": "content parts must be text; images, audio and video cannot be used",
    "bad_tokens": "input_ids must be ids of the model's vocabulary, and loss_mask as many zeros and ones",
    "template_error": "the model's chat template refuses these messages; mind the order of roles",
    "needs_date": "the chat template writes today's date, so that the ids would change from day to day; set "
    "template_date, such as 2026-11-30",
    "unstable_template": "no mask is sure: the chat template does not begin the turn as it prompts for it; give the "
    "model a template with {% generation %} tags",
    "empty": "no token is left",
    "nothing_to_supervise": "no token is left to learn from; the chat needs an answer that is not empty",
    "too_little_to_supervise": "lower min_supervised_tokens, or leave the row out",
    "too_long": "raise max_length, set too_long to truncate or truncate_turns, or cut the chat",
    "cut_off": "the file ends within this row, or is damaged there; copy it again",
    "duplicate": "an earlier row has the same token ids; set duplicates to keep for rows that share their states",
    "not_sampled": "raise sample_fraction",
    "over_total": "raise max_total_tokens",
}

# Rows that the user chose to leave out: counted, and not written down one by one.
BY_CHOICE = frozenset({"not_sampled", "over_total"})


class RowRejectedError(Exception):
    """One row cannot be used; `reason` is a key of `REASONS`, `hint` says what to do about it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        self.hint = f"{detail}; {REASONS[reason]}" if detail else REASONS[reason]
        super().__init__(f"{reason}: {self.hint}")

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (self.reason, self.detail)
