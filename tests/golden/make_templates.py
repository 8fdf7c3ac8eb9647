#!/usr/bin/env python3
"""What jinja2 makes of chat templates, with the settings that transformers uses.

    python3 tests/golden/make_templates.py ../shared/data/templates

writes tests/golden/templates/snippets.golden (each snippet's text) and models.golden (length and
FNV-1a 64 hash of each model template's text for each case, or "error": the templates themselves and
what they print belong to their models' makers and are not kept here). Needs the package jinja2.
"""
import json
import pathlib
import sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent / "templates"
MESSAGES = [
    {"role": "user", "content": "Hello there"},
    {"role": "assistant", "content": "Hi, Ä"},
    {"role": "user", "content": "bye"},
]


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: "?"
    return env


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def render(source, variables):
    try:
        return environment().from_string(source).render(**variables)
    except (jinja2.exceptions.TemplateError, TypeError) as error:
        print(f"    {type(error).__name__}: {error}", file=sys.stderr)
        return None


def main():
    snippets = (HERE / "snippets.txt").read_text(encoding="utf-8").split("\n====\n")
    variables = {"messages": MESSAGES, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    texts = [render(s, variables) for s in snippets]
    assert None not in texts
    (HERE / "snippets.golden").write_text("\n====\n".join(texts), encoding="utf-8")

    cases = [line.split("\t", 1) for line in (HERE / "cases.txt").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    with open(HERE / "models.golden", "w", encoding="utf-8") as out:
        out.write("# template, case, bytes and FNV-1a 64 of the text, or error; by make_templates.py\n")
        for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
            for name, text in cases:
                print(path.name, name, file=sys.stderr)
                made = render(path.read_text(encoding="utf-8"), json.loads(text))
                data = made.encode() if made is not None else b""
                out.write(f"{path.name} {name} " + ("error\n" if made is None else f"{len(data)} {fnv(data):016x}\n"))


main()
