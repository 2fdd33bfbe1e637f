"""What an input to a fuzzed reader may take, and where the number of the input under way is."""

# Beyond what the process has once the reader has read what is valid.
MEMORY_BYTES = 1 << 30
INPUT_SECONDS = 10
# For whoever finds the process dead.
PROGRESS = "progress"
