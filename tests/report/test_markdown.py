"""Markdown: its tables are tables, and nothing from outside is markup."""

import re
from dataclasses import replace

from tests import report_samples as samples
from xframe.analysis.decomposition import explained
from xframe.report.markdown import markdown, text


def made(run):
    return markdown(run, explained(run), "run.json", "0f" * 32)


def test_headings_and_tables():
    lines = made(samples.run((1, 16))).splitlines()
    assert lines[0] == "# alexnet on Some CPU: what is fastest, and where the time goes"
    assert [x for x in lines if x.startswith("## ")] == [
        "## alexnet, batch 1, 2 threads", "## alexnet, batch 16, 2 threads", "## Options", "## Environment"
    ]  # fmt: skip
    for i, line in enumerate(lines):
        if re.fullmatch(r"\|(?:-+:?\|)+", line):
            columns = line.count("|")
            rows = lines[i - 1 : i] + lines[i + 1 : lines.index("", i)]
            assert rows
            assert all(len(re.findall(r"(?<!\\)\|", row)) == columns for row in rows)


def test_reasons_are_told_in_full():
    assert (
        "| 7. tvm fft (pytorch's export) | UNSUPPORTED: fft can't do conv1: its stride is 4 |"
        in made(samples.run()).splitlines()
    )


def test_rows_of_a_gpu_have_no_roofs_of_the_cpu():
    made_of = {}
    for device in ("cpu", "cuda:0"):
        run = samples.run()
        rows = tuple(replace(m, case=replace(m.case, device=device)) for m in run.measurements)
        made_of[device] = "### Roofline" in made(replace(run, measurements=rows))
    assert made_of == {"cpu": True, "cuda:0": False}


def test_nothing_from_outside_is_markup():
    assert text("a|b<img>\n# x `y` [z](u)") == r"a\|b\<img\> \# x \`y\` \[z\](u)"
    run = samples.run()
    evil = "| <img src=x> \n\n# big"
    bad = replace(run, measurements=tuple(replace(m, notes=(evil,)) for m in run.measurements))
    shown = made(bad)
    assert not re.search(r"(?<!\\)<", shown)
    assert "\n# big" not in shown
