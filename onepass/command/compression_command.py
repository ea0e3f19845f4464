"""The verbs `compress` and `decompress`, for image, sound and array files."""

import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any

from onepass.command.arguments import CompressArguments, DecompressArguments
from onepass.command.array_files import FILES, ElementFiles
from onepass.compression import container
from onepass.compression.arrays import kind_of
from onepass.compression.container import Container, read_file
from onepass.foundation import files
from onepass.foundation.files import check_new, make_folder, safe_name
from onepass.foundation.rules import UserError, require
from onepass.models import load

VERIFY = {"cheap": None, "always": True, "never": False}


def compress(given: CompressArguments) -> int:
    """Run `onepass compress` and return the exit status."""
    if not given.files:
        raise UserError("`FILES` is empty: pass the files to compress.")
    check_new([given.out], given.overwrite)
    make_folder(given.out.parent)
    model: Any = load(given.model)
    kind, start = kind_of(model, str(given.model)), time.perf_counter()
    own = FILES[kind.name]
    counts = {"FILES": len(given.files), "--condition": len(given.condition)}
    for (option, count), most in zip(counts.items(), own.most, strict=True):
        fits = most is None or count <= most
        require(fits, option, f"at most {most} for {kind.name}", count)
    parts = [own.read(path, model) for path in given.files]
    condition: Any = list(given.condition) or None
    condition = condition[0] if condition and own.most[1] == 1 else condition
    names = [path.name for path in given.files] if own.most[0] is None else None
    options: dict[str, Any] = {"tolerance": given.tolerance, "verify": VERIFY[given.verify]}
    options |= {"names": names, "batch": given.batch, "progress": True}
    try:
        data = container.compress(kind, own.together(parts), condition, **options)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{given.files[0]}: {error}") from error
    with files.replacing(given.out) as temporary:
        temporary.write_bytes(data)
    size, seconds = sum(part.size for part in parts), time.perf_counter() - start
    print(
        f"{given.out}: {size:,} elements of {len(parts)} files in {len(data):,} bytes,"
        f" {8 * len(data) / size:.3f} bits per element, in {seconds:.1f} s"
    )
    return 0


def decompress(given: DecompressArguments) -> int:
    """Run `onepass decompress` and return the exit status."""
    data, model = read_file(given.file), load(given.model)
    kind, start = kind_of(model, str(given.model)), time.perf_counter()
    own, found = FILES[kind.name], container.read_file_of(kind, data)
    many = own.most[0] is None
    only = given.out / safe_name(f"{given.file.stem}.npy")
    paths = _paths(given.out, found, own) if many else [only]
    check_new(paths, given.overwrite)
    elements = container.decompress(
        kind, data, max_elements=given.max_elements, progress="decompressing"
    )
    make_folder(given.out)
    for path, each in zip(paths, elements if many else [elements], strict=True):
        own.write(path, each, model)
    print(f"{given.out}: {len(paths)} files in {time.perf_counter() - start:.1f} s")
    return 0


def _paths(out: Path, found: Container, own: ElementFiles) -> list[Path]:
    """Return each stored name's output path, unique even without case; print changed names."""
    count = found.shape[0]
    names = found.description.get("names")
    if not isinstance(names, list) or len(names) != count:
        names = [f"{i:05d}" for i in range(count)]
    paths: dict[str, Path] = {}
    renamed = []
    for i, name in enumerate(map(str, names)):
        path = out / safe_name(name)
        if path.suffix.lower() not in own.suffixes:
            path = path.with_suffix(own.suffixes[-1])
        while files.fold_name(path.name) in paths:
            path = path.with_stem(f"{path.stem}-{i}")
        paths[files.fold_name(path.name)] = path
        if path.stem != name.removesuffix(PurePosixPath(name).suffix):
            renamed.append(f"{files.show_path(name)} as {path.name}")
    if renamed:
        print(f"written by another name than the file says: {files.some(renamed)}", file=sys.stderr)
    return list(paths.values())
