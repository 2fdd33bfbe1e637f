"""Examples of the commands, as `--help` shows them."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "extract": (
        "aerie extract --model models/Qwen3-8B --data chats.jsonl --store states",
        "aerie extract --model models/Qwen3-8B --data 'data/*.parquet' --store states --layers 2,final --devices 0-3",
    ),
    "plan": ("aerie plan --model models/Qwen3-8B --data chats.jsonl --store states",),
    "settings": ("AERIE_TOO_LONG=truncate aerie settings --layers 2,final",),
    "preview": ("aerie preview --model models/Qwen3-8B --data chats.jsonl --samples 3 --html preview.html",),
    "show": (
        "aerie show states",
        "aerie show states --spec b7b0c4 --json",
        "aerie show states --plots plots --model models/Qwen3-8B",
    ),
    "compare": (
        "aerie compare states",
        "aerie compare states 20261129T153810Z c9ae75",
        "aerie compare states/runs/20261129T153810Z-c9ae75 other/runs/20261130T010000Z-1a2b3c --json",
    ),
    "validate": ("aerie validate states --fraction 0.1", "aerie validate states --repair"),
    "compact": ("aerie compact states --dry-run", "aerie compact states"),
    "export": (
        "aerie export states --format specforge --to files --dry-run",
        "aerie export states --format specforge --to files",
    ),
    "import": (
        "aerie import files --from specforge --store states --model models/Qwen3-8B --dry-run",
        "aerie import files --from specforge --store states --model models/Qwen3-8B",
    ),
    "gc": ("aerie gc states", "aerie gc states --yes"),
    "vocabulary": ("aerie vocabulary states --model models/Qwen3-8B --size 32000 --out vocabulary",),
    "deploy": ("aerie deploy --model models/Qwen3-8B --data 'data/*.jsonl' --store states --nightly '0 1 * * *'",),
    "serve": ("aerie serve --model models/Qwen3-8B --data 'data/*.jsonl' --store states",),
    "undeploy": ("aerie undeploy", "aerie undeploy --yes"),
    "worker": ("PREFECT_API_URL=http://127.0.0.1:4200/api aerie worker --queue gpu --limit 1",),
    "server": ("aerie server", "aerie server --host 0.0.0.0 --port 4201"),
    "doctor": ("aerie doctor states", "aerie doctor /mnt/nvme/states --json"),
    "completion": (
        "aerie completion bash > ~/.local/share/bash-completion/completions/aerie",
        "aerie completion zsh > ~/.zsh/completions/_aerie",
        "aerie completion fish > ~/.config/fish/completions/aerie.fish",
    ),
    "demo": ("aerie demo --store aerie-demo",),
}
