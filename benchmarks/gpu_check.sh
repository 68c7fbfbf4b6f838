#!/usr/bin/env bash
# Run gpu_check on a machine without network: `bash benchmarks/gpu_check.sh [options of gpu_check]`, or PYTHON=python3.12 bash ...
# It installs this checkout and the wheels of `make gpu-bundle` in an environment of its own, beside the torch of $PYTHON.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
environment=${ENVIRONMENT:-$(mktemp -d)}

"$python" -m venv --system-site-packages --without-pip "$environment"
# If $PYTHON is that of an environment, the new one has the packages of the system only.
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$(echo "$environment"/lib/python3.*/site-packages)/outer.pth"
"$python" -m pip --python "$environment/bin/python" install --quiet --no-index --find-links gpu-bundle .
exec "$environment/bin/python" benchmarks/gpu_check.py "$@"
