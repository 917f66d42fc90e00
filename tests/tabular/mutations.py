"""Damage to a saved model, from a flipped bit to a file that lies about itself with correct hashes."""

import copy
import hashlib
import json
import os
import random
import struct
from pathlib import Path

EVIL = (
    None, True, False, 0, -1, 1, 2, 7, 0.5, -0.0, 1.5, 1e308, -1e308, 5e-324, 10**18, 10**30, 10**400, 2**63, -(2**63),
    "", "x", "x" * 10_000, "inf", "-inf", "nan", "NaN", "1", "binary", "multiclass", "multilabel", "linear", "mlp",
    "net", "factory", "identity", "temperature", "float64", "object", "int8", "../../model.json", "/etc/passwd", "\x00",
    "\ud800", "0.safetensors", "1.safetensors", "__class__", "os.system", [], {}, [[]], [None], {"": {}}, [1e308] * 50,
    ["a"] * 50, [1] * 5000,
)  # fmt: skip
LITERALS = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 5000, b"[" * 100_000, b'{"a":' * 5000,
            b"0x10", b"01", b"1_000", b"tru", b"\xff\xfe", b'"\\ud800"', b"1e-999", b"-0")  # fmt: skip


def seal(folder: Path) -> None:
    """Correct the sizes and hashes, so that what stands behind them has to hold."""
    path = folder / "model.json"
    try:
        document = json.loads(path.read_bytes())
        members = folder / document["folder"]
        for name, entry in document["files"].items():
            data = (members / name).read_bytes()
            entry["bytes"], entry["sha256"] = len(data), hashlib.sha256(data).hexdigest()
        document.pop("sha256", None)
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        document["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        path.write_bytes(json.dumps(document).encode())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # too far gone to be corrected


def mutate(folder: Path, rng: random.Random, other: Path) -> str:
    """Damage the model in ``folder``; ``other`` is another whole model to take parts of. Returns what was done."""
    kind = rng.choice((_bytes, _bytes, _json, _json, _json, _json, _literal, _tensors, _tensors, _tensors, _files))
    done = kind(folder, rng, other)
    if rng.random() < 0.7 and done != "pipe":  # which nobody writes to, and so cannot be read
        seal(folder)
        done += ", sealed"
    return done


def _pick(folder, rng):
    return rng.choice(sorted(p for p in folder.rglob("*") if p.is_file()))


def _bytes(folder, rng, other):
    path = _pick(folder, rng)
    data = bytearray(path.read_bytes())
    at, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 8, 100))
    how = rng.choice(("flip", "set", "cut", "insert", "truncate", "append", "empty", "repeat", "noise"))
    if how == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif how == "set":
        data[at : at + length] = rng.randbytes(length)
    elif how == "cut":
        del data[at : at + length]
    elif how == "insert":
        data[at:at] = rng.randbytes(length)
    elif how == "truncate":
        del data[at:]
    elif how == "append":
        data += rng.randbytes(length)
    elif how == "empty":
        data.clear()
    elif how == "repeat":
        data[at:at] = data[at : at + length] * rng.choice((2, 50))
    else:
        data = rng.randbytes(rng.choice((1, 100, 10_000)))
    path.write_bytes(bytes(data))
    return f"{how} in {path.name}"


def nodes(node, path=()):
    """The way to every value in a JSON, as keys and places."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from nodes(value, (*path, key))


def _json(folder, rng, other):  # noqa: PLR0912 (a list of ways)
    path = folder / "model.json"
    document = json.loads(path.read_bytes())
    said = []
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        ways = [p for p in nodes(document) if p]
        # a part at random and then a place in it, or the many numbers would take most of the blows
        part = rng.choice(sorted({p[0] for p in ways}))
        *way, key = rng.choice([p for p in ways if p[0] == part])
        parent = document
        for step in way:
            parent = parent[step]
        how = rng.choice(("evil", "evil", "evil", "delete", "add", "rename", "text", "copy", "many", "nudge", "deep"))
        said.append(f"{how} at {'/'.join(map(str, (*way, key)))}")
        value = parent[key]
        if how == "evil":
            parent[key] = copy.deepcopy(rng.choice(EVIL))
        elif how == "delete":
            del parent[key]
        elif how == "add" and isinstance(parent, dict):
            parent[str(rng.choice(EVIL))[:50]] = copy.deepcopy(rng.choice(EVIL))
        elif how == "rename" and isinstance(parent, dict):
            parent[key + rng.choice((" ", "_", "s", "\x00"))] = parent.pop(key)
        elif how == "text":
            parent[key] = str(value)
        elif how == "copy":
            source = document
            for step in rng.choice(ways):
                source = source[step] if isinstance(source, dict | list) else source
            parent[key] = copy.deepcopy(source)
        elif how == "many":
            parent[key] = [value] * rng.choice((2, 1000)) if not isinstance(value, list) else value * 3
        elif how == "nudge" and type(value) in (int, float):
            parent[key] = rng.choice((value + 1, value - 1, -value, value * 10**6))
        elif how == "deep":
            for _ in range(rng.choice((3, 300))):
                value = [value]
            parent[key] = value
    path.write_text(json.dumps(document))
    return "; ".join(said)


def _literal(folder, rng, other):
    """What only the text of a JSON can hold: numbers it has not, keys that occur twice, other encodings."""
    path = folder / "model.json"
    text = path.read_bytes()
    how = rng.choice(("literal", "literal", "literal", "twice", "utf-16", "bom", "spaces"))
    if how == "literal":
        places = [i for i in range(len(text)) if text[i : i + 2] == b": "]
        at = rng.choice(places) + 2
        end = min(i for i in (text.find(b",", at), text.find(b"\n", at)) if i > 0)
        text = text[:at] + rng.choice(LITERALS) + text[end:]
    elif how == "twice":
        text = text.replace(b'"task":', b'"task": "binary", "task":', 1)
    elif how == "utf-16":
        text = text.decode().encode("utf-16")
    elif how == "bom":
        text = b"\xef\xbb\xbf" + text
    else:
        text = text.replace(b"\n", b"\r\n  ")
    path.write_bytes(text)
    return how


def _tensors(folder, rng, other):  # noqa: PLR0912 (a list of ways)
    """A safetensors header that lies."""
    path = rng.choice(sorted(folder.glob("members-*/*.safetensors")))
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(names)
    entry = header[name]
    how = rng.choice(
        ("offsets", "shape", "dtype", "rename", "drop", "add", "metadata", "length", "number", "swap", "empty", "evil",
         "reshape", "nets", "key")
    )  # fmt: skip
    if how == "offsets":
        entry["data_offsets"][rng.randrange(2)] += rng.choice((1, -1, 4, -4, 2**40, -(2**40), 2**63))
    elif how == "shape":
        entry["shape"][rng.randrange(len(entry["shape"]))] = rng.choice((0, 1, 2, -1, 2**31, 2**40, 2**62, 2**64))
    elif how == "dtype":
        entry["dtype"] = rng.choice(("F64", "F16", "BF16", "I32", "U8", "BOOL", "C64", "F8_E4M3", "X", 3, None))
    elif how == "rename":
        header[rng.choice(("", "weights.99", "../x", "\u0000", "x" * 5000))] = header.pop(name)
    elif how == "drop":
        del header[name]
    elif how == "add":
        end = len(body)
        header["more"] = {"dtype": "U8", "shape": [3], "data_offsets": [end, end + 3]}
        body += b"abc"
    elif how == "metadata":
        header["__metadata__"] = rng.choice(({"a": "b"}, {"a": 1}, [], {"a": "x" * 10**5}))
    elif how == "number":
        value = rng.choice((float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45))
        at = 4 * rng.randrange(len(body) // 4)
        body[at : at + 4] = struct.pack("<f", value)
    elif how == "swap" and len(names) > 1:
        a, b = rng.sample(names, 2)
        header[a], header[b] = header[b], header[a]
    elif how == "empty":
        header = rng.choice(({}, {"x": {"dtype": "F32", "shape": [2**40, 0], "data_offsets": [0, 0]}}))
        body = bytearray()
    elif how == "evil":
        entry[rng.choice(sorted(entry))] = copy.deepcopy(rng.choice(EVIL))
    elif how == "reshape":
        entry["shape"] = rng.choice((entry["shape"][::-1], [1, *entry["shape"]], entry["shape"][1:], []))
    elif how == "nets":  # very many, very small nets
        header, body = (
            {"weights.0": {"dtype": "F32", "shape": [10**6, 1, 1], "data_offsets": [0, 4 * 10**6]}},
            bytearray(4 * 10**6),
        )
    elif how == "key":
        entry["more"] = 1
    text = json.dumps(header).encode()
    claimed = rng.choice((0, 2**63, 2**40, len(text) + 1, len(text) - 1)) if how == "length" else len(text)
    path.write_bytes(struct.pack("<Q", claimed) + text + bytes(body))
    return f"{how} of {name} in {path.name}"


def _files(folder, rng, other):
    path = _pick(folder, rng)
    members = next(folder.glob("members-*"))
    how = rng.choice(
        ("delete", "folder", "link", "link-folder", "pipe", "swap", "foreign", "no-members", "name", "more")
    )
    if how == "delete":
        path.unlink()
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "link":
        path.rename(folder.parent / "moved")
        path.symlink_to(folder.parent / "moved")
    elif how == "link-folder":
        members.rename(folder.parent / "moved")
        members.symlink_to(folder.parent / "moved")
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
        return how
    elif how == "swap":
        a, *_, b = members.iterdir() if len(list(members.iterdir())) > 1 else (path, folder / "model.json")
        data = a.read_bytes()
        a.write_bytes(b.read_bytes())
        b.write_bytes(data)
    elif how == "foreign":
        source = rng.choice(sorted(p for p in other.rglob("*") if p.is_file()))
        path.write_bytes(source.read_bytes())
    elif how == "no-members":
        members.rename(folder / "members-00000000")
    elif how == "name":
        document = json.loads((folder / "model.json").read_bytes())
        evil = rng.choice(
            ("../model.json", "/etc/hostname", "a/b", "..", ".", "", "0.safetensors\x00", "0.SAFETENSORS")
        )
        if rng.random() < 0.5:
            document["files"][evil] = document["files"].pop("0.safetensors")
            document["members"][0]["file"] = evil
        else:
            document["folder"] = evil
        (folder / "model.json").write_text(json.dumps(document))
    else:
        (members / "9.safetensors").write_bytes((members / "0.safetensors").read_bytes())
    return f"{how} {path.name}"
