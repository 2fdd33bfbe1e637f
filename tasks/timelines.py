"""Tokens over time, in a bounded number of bins, however long it takes."""

from dataclasses import dataclass, field

MOST_BINS = 240


@dataclass
class Timeline:
    """Tokens in bins of one length, which doubles whenever there would be more than `MOST_BINS`.

    Attributes:
        began: when the first bin began, in seconds since 1970; 0 while there is none.
        bin_seconds: length of a bin.
        tokens: tokens of each bin.
    """

    began: float = 0.0
    bin_seconds: float = 1.0
    tokens: list[int] = field(default_factory=list)

    def add(self, moment: float, tokens: int) -> None:
        """Count tokens at a moment, in seconds since 1970."""
        if not self.tokens:
            self.began = moment
        while moment < self.began:
            self._begin_earlier()
        while (place := int((moment - self.began) / self.bin_seconds)) >= MOST_BINS:
            self._double()
        self.tokens += [0] * (place + 1 - len(self.tokens))
        self.tokens[place] += tokens

    def join(self, other: "Timeline") -> None:
        """Count what another timeline has counted, at the middle of each of its bins."""
        for place, tokens in enumerate(other.tokens):
            if tokens:
                self.add(other.began + (place + 0.5) * other.bin_seconds, tokens)

    def rates(self) -> list[tuple[float, float]]:
        """Return when each bin begins, and its tokens a second."""
        return [
            (self.began + place * self.bin_seconds, tokens / self.bin_seconds)
            for place, tokens in enumerate(self.tokens)
        ]

    def _begin_earlier(self) -> None:
        """Put an empty bin first."""
        if len(self.tokens) == MOST_BINS:
            self._double()
        self.tokens.insert(0, 0)
        self.began -= self.bin_seconds

    def _double(self) -> None:
        pairs = zip(self.tokens[::2], [*self.tokens[1::2], 0][: len(self.tokens[::2])], strict=True)
        self.tokens = [first + second for first, second in pairs]
        self.bin_seconds *= 2
