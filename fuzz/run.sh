#!/usr/bin/env bash
# Fuzzes one reader: idx, arrow or npy, for a number of seconds, from the recorded files as seeds.
#   rustup toolchain install nightly && cargo install cargo-fuzz --locked
#   fuzz/run.sh idx 600
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?idx, arrow or npy} seconds=${2:-600}
corpus=fuzz/corpus/$target
mkdir -p "$corpus"
case $target in
  idx | arrow) from=tests/golden ;;
  npy) from=fuzz/seeds ;;
  *) echo "no target $target: idx, arrow or npy" >&2; exit 2 ;;
esac
find "$from" -name "*.$target" -size -64k | while read -r file; do
  cp "$file" "$corpus/$(echo "$file" | tr / _)"
done
cargo +nightly fuzz run --release "$target" "$corpus" -- -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=20
