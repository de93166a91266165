#!/usr/bin/env bash
# The one step of the gate; its inputs come as variables (see action.yml). Exit code: that of `maxsim-bench compare`.
set -euo pipefail
set -f # filters hold characters that a shell would expand

root=$(cd "$(dirname "$0")/../../.." && pwd)
work=${RUNNER_TEMP:?}/maxsim-gate
python=$work/venv/bin/python
rm -rf "$work/out"
mkdir -p "$work"

# What comparing imports, and no more: torch and the kernels stay where they are.
if [ ! -x "$python" ]; then
  "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "::error::${PYTHON:-python3} is older than Python 3.11: give the input python another one"; exit 2; }
  "${PYTHON:-python3}" -m venv "$work/venv"
  "$python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" \
    click jinja2 numpy pandas pydantic scipy
fi

arguments=(--fail-on "${FAIL_ON:-slower}" --into "$work/out")
arguments+=(--thresholds "${THRESHOLDS:-$root/experiments/compare/thresholds.toml}")
[ -z "${EXPERIMENT:-}" ] || arguments+=(--experiment "$EXPERIMENT")
for name in ${BACKENDS:-}; do arguments+=(--backend "$name"); done
for filter in ${WHERE:-}; do arguments+=(--where "$filter"); done

code=0
PYTHONPATH=$root/harness PYTHONDONTWRITEBYTECODE=1 "$python" -m maxsim_bench.cli compare "${arguments[@]}" -- "$BASE" "$NEW" \
  >"$work/told" || code=$?

case $code in
  0) verdict=passed ;;
  1) verdict=failed ;;
  *) verdict=refused ;;
esac
# Rows that were left out make it refused, with a comparison of the others. A bug ends Python with 1 as well, but leaves
# no comparison behind.
folder=$work/out
[ -f "$folder/comparison.json" ] || verdict=refused folder=
{ echo "verdict=$verdict"; echo "folder=$folder"; } >>"${GITHUB_OUTPUT:?}"
if [ -z "$folder" ]; then
  echo "The runs cannot be compared; the log of this step says why." >>"${GITHUB_STEP_SUMMARY:?}"
else
  cat "$work/told" >>"${GITHUB_STEP_SUMMARY:?}"
fi
cat "$work/told"
exit "$code"
