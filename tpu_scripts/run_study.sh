#!/usr/bin/env bash
# Run a study on all workers of an existing TPU VM. It creates and deletes no cloud resource.
# shellcheck source=lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'HELP'
usage: run_study.sh --name TPU --zone ZONE [options] [-- ARGUMENT...]

Runs `vrh study CONFIG --distributed` on all workers of an existing TPU VM, over ssh.
Arguments after -- go to `vrh study` as they are.

  --name TPU          name of the TPU VM                                (TPU_NAME)
  --zone ZONE         its zone; never guessed                           (ZONE)
  --project PROJECT   Google Cloud project; default: gcloud's setting   (PROJECT)
  --config FILE       study config, inside the repository               (CONFIG)
  --out FOLDER        folder of the results on worker 0; default: the config's   (OUT)
  --remote-dir DIR    the repository on the workers, default vrh-jax    (REMOTE_DIR)
  --remote-python PY  Python 3.11+ on the workers, default python3.11   (REMOTE_PYTHON)
  --setup             first copy the committed code there and install it
  --smoke             first run smoke.py there; a failure stops
  --dry-run           print the commands, run nothing                   (DRY_RUN=1)
  -h, --help          this text

Names in brackets are the variables that env.sh may set. Exit status: that of the study
(0 done, 42 preempted: run the same command again, other: failed); 2 for bad arguments.
HELP
}

load_environment
setup=0
smoke=0
while (($#)); do
  case "$1" in
    --name | --zone | --project | --config | --out | --remote-dir | --remote-python)
      require_argument "$1" "$#"
      case "$1" in
        --name) TPU_NAME="$2" ;;
        --zone) ZONE="$2" ;;
        --project) PROJECT="$2" ;;
        --config) CONFIG="$2" ;;
        --out) OUT="$2" ;;
        --remote-dir) REMOTE_DIR="$2" ;;
        --remote-python) REMOTE_PYTHON="$2" ;;
      esac
      shift 2
      ;;
    --setup) setup=1 && shift ;;
    --smoke) smoke=1 && shift ;;
    --dry-run) DRY_RUN=1 && shift ;;
    -h | --help) usage && exit 0 ;;
    --) shift && break ;; # the rest is for vrh study
    *) die "unknown argument $1; see --help" ;;
  esac
done
require_var TPU_NAME --name
require_var ZONE --zone
require_var CONFIG --config
REMOTE_DIR="${REMOTE_DIR:-vrh-jax}"
REMOTE_PYTHON="${REMOTE_PYTHON:-python3.11}"
[[ -f "$REPOSITORY/$CONFIG" ]] || die "no config $CONFIG in $REPOSITORY; give a path inside it"

where=(--zone="$ZONE" --worker=all)
if [[ -n "${PROJECT:-}" ]]; then where+=(--project="$PROJECT"); fi

# on_workers COMMAND: one shell line, on all workers at once.
on_workers() {
  run gcloud compute tpus tpu-vm ssh "$TPU_NAME" "${where[@]}" --command="$1"
}

directory="$(quote "$REMOTE_DIR")"
enter="cd $directory && . .venv/bin/activate"

if ((setup)); then
  bundle="${TMPDIR:-/tmp}/vrh-jax.tar.gz"
  python="$(quote "$REMOTE_PYTHON")"
  run git -C "$REPOSITORY" archive --format=tar.gz --output="$bundle" HEAD
  run gcloud compute tpus tpu-vm scp "$bundle" "$TPU_NAME:vrh-jax.tar.gz" "${where[@]}"
  on_workers "mkdir -p $directory && tar -xzf vrh-jax.tar.gz -C $directory && cd $directory && $python -m venv .venv && . .venv/bin/activate && pip install -e '.[tpu]'"
fi

check=(python tpu_scripts/smoke.py --distributed)
study=(vrh study "$CONFIG" --distributed)
if [[ -n "${OUT:-}" ]]; then
  check+=(--out "$OUT")
  study+=(--out "$OUT")
fi
if ((smoke)); then on_workers "$enter && $(quote "${check[@]}")"; fi
on_workers "$enter && $(quote "${study[@]}" "$@")"
