#!/bin/sh
# The main job from nothing: generate the 29 datasets, index them, look at them.
# `make demo` runs this with the freshly installed `headrace` on the PATH.
set -eu

say() {
    printf '\n$ %s\n' "$*"
    "$@"
}

root=demo/oxe
rm -rf demo
say headrace synth "$root"
say headrace index "$root"
say headrace index "$root/droid"
say headrace inspect "$root" --picture demo/contact_sheet.png
say headrace inspect "$root/bridge/0.1.0"
say headrace verify "$root"
printf '\n$ python (any frame by its byte range)\n'
python - "$root" <<'PYTHON'
import sys
import headrace as hr

catalog = hr.Catalog.open(sys.argv[1] + "/bridge/0.1.0")
episode = catalog.episodes("train[:90%]")[0]
where = catalog.place(episode, t=3)
print(catalog)
print(f"frame 3 of episode {catalog.info(episode).id}: {where.length:,} bytes at {where.offset:,}")
print("decoded:", catalog.frame(episode, t=3).shape)
print("action: ", catalog.read(episode, "action/world_vector", 3, 8).sum(axis=0))
print("text:   ", catalog.instruction(episode))
PYTHON
say python docs/stream.py "$root" 5
say headrace bench oxe29 "root=$root" --seconds 5 --runs demo/runs
printf '\nThe contact sheet is demo/contact_sheet.png, the report of the benchmark %s\n' \
    demo/runs/*/report.html
