"""The table of readers that are fuzzed."""

from importlib import import_module
from pathlib import Path

from fuzz_base import Target

# Module and class; a process imports what it needs, since torch takes seconds.
READERS: dict[str, tuple[str, str]] = {
    "jsonl": ("fuzz_data", "LinesFile"),
    "json": ("fuzz_data", "ArrayFile"),
    "gzip": ("fuzz_data", "GzipFile"),
    "zstd": ("fuzz_data", "ZstdFile"),
    "parquet": ("fuzz_data", "ParquetFile"),
    "arrow": ("fuzz_data", "ArrowFile"),
    "store": ("fuzz_stores", "StoreMetadata"),
    "loose": ("fuzz_stores", "LooseObject"),
    "pack": ("fuzz_packs", "PackIndex"),
    "shard": ("fuzz_packs", "ShardIndexes"),
    "chunk": ("fuzz_packs", "ChunkStream"),
    "tokens": ("fuzz_artifacts", "TokensArtifact"),
    "vocabulary": ("fuzz_artifacts", "DraftVocabularyGroup"),
    "specforge": ("fuzz_files", "SpecForgeFile"),
    "safetensors": ("fuzz_files", "SafetensorsFile"),
    "manifest": ("fuzz_files", "ExportManifest"),
}


def make_target(reader: str, folder: Path) -> Target:
    """Return a reader by its name, with files in a folder of its own."""
    module, name = READERS[reader]
    target: Target = getattr(import_module(module), name)(folder)
    return target
