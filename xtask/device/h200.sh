#!/usr/bin/env bash
# Everything that is measured and proved on an NVIDIA GPU, from prebuilt binaries: no cargo, no network, no tree.
#
#   h200.sh DIR [STAGE...]
#
# DIR holds: portolan, xtask (it writes the big checkpoints), and the tests and benchmarks of the same build under the
# names conformance, oracle, gpu, load. A file `commit` in it, or COMMIT, says what they were built from. docs/cuda.md
# says how to build them.
#
# Stages, in this order, all by default (models and compiled kernels stay in TMP for the next call):
#   ceilings     what the machine can do: read, copy, bf16 matrix product, pinned copy to the GPU (needs torch)
#   conformance  every variant against its reference
#   families     the tiny checkpoints against transformers and MLX
#   arms         eager and lazy, pinned and pageable, with the shapes of two models: profiles, and the same tokens
#   load         2 GiB in 16 tensors: the four slots, pinned per tensor, pageable, bare
#   speed        prefill and decode at three depths, as shares of the ceilings
#   smollm2      traces: the CPU's exact one against the GPU, by activation and width, and a control (needs SMOLLM2)
#   sanitizer    compute-sanitizer's memcheck, racecheck and initcheck over a small sample of the conformance cases
#
# Variables: OUT (results; ./h200-out), TMP (big files; /tmp), LIMIT (seconds in all; 540), COMMIT,
#   PORTOLAN_ORACLE (crates/testkit/data, or a folder laid out like it; else DIR/data),
#   PORTOLAN_TEST_SAMPLE (conformance: every n-th case; 8), SANITIZER_SAMPLE (250), SANITIZER_TOOLS,
#   MODELS (arms, speed), DEPTHS, REPETITIONS (speed), SMOLLM2 (a .gguf), TEXT (a text), POSITIONS (2000).
# Exit code: 0 if nothing failed. What could not be done is SKIPPED, with its reason.
set -uo pipefail

all=(ceilings conformance families arms load speed smollm2 sanitizer)
usage() { sed -n '2,/^# Exit code/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
(($#)) || usage
bin=$(cd "$1" 2>/dev/null && pwd) || usage
shift
stages=("$@")
((${#stages[@]})) || stages=("${all[@]}")
for s in "${stages[@]}"; do [[ " ${all[*]} " == *" $s "* ]] || { echo "no stage $s" >&2; usage; }; done

out=${OUT:-$PWD/h200-out}
tmp=${TMP:-/tmp}
limit=${LIMIT:-540}
sample=${PORTOLAN_TEST_SAMPLE:-8}
read -ra models <<<"${MODELS:-qwen3-0.6b llama-3.1-8b}"
read -ra depths <<<"${DEPTHS:-0 4096 16384}"
read -ra tools <<<"${SANITIZER_TOOLS:-memcheck racecheck initcheck}"
# They are this script's own, or are given to one command alone.
unset PORTOLAN_TEST_SAMPLE OUT
work=$tmp/portolan-h200
mkdir -p "$out" "$work/models" "$work/tmp" || exit 2
export TMPDIR=$work/tmp PORTOLAN_CACHE_DIR=${PORTOLAN_CACHE_DIR:-$work/kernels}
if [[ -z ${PORTOLAN_ORACLE:-} && -d $bin/data ]]; then export PORTOLAN_ORACLE=$bin/data; fi
log=$out/log.txt
rows=$work/rows
: >"$rows"
: >"$log"

left() { echo $((limit - SECONDS)); }
# note STAGE WHAT VALUE VERDICT: a row of the table.
note() {
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$rows"
    printf '%-8s %-12s %s: %s\n' "$4" "$1" "$2" "$3" | tee -a "$log"
}
# Runs a command for at most so many seconds and what is left in all; its output goes to the log and to $said.
said=$work/said
within() {
    local most=$1 rest
    shift
    rest=$(left)
    if ((rest < 3)); then echo 'out of time' >"$said"; return 124; fi
    if ((rest < most)); then most=$rest; fi
    printf '\n$ %s\n' "$*" >>"$log"
    timeout -k 5 "$most" "$@" >"$said" 2>&1
    local rc=$?
    cat "$said" >>"$log"
    return $rc
}
# Whether a program is there, else a row that says it is not.
need() {
    [[ -x $bin/$2 ]] && return
    note "$1" "$2" "not in $bin" SKIPPED
    return 1
}
verdict() { if "$@"; then echo PASS; else echo FAIL; fi; }
at_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 >= b + 0) }'; }
# A failure's reason: what a test harness or a program says last that is worth reading.
reason() {
    if (($1 == 124 || $1 == 137)); then echo 'out of time'; return; fi
    { grep -m1 -E '^error|panicked|SKIPPED' "$said" || tail -n 1 "$said"; } | cut -c1-160
}

# A checkpoint with a model's shapes, written once, and in the page cache.
model() {
    local to=$work/models/$1
    if [[ ! -d $to ]]; then
        rm -rf "$to.part"
        within 240 "$bin/xtask" synth "$1" --bits 4 -o "$to.part" || return
        # A vocabulary of eight letters: enough for a prompt, and what is compared are the ids.
        cat >"$to.part/tokenizer.json" <<'JSON'
{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "post_processor": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
 "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
           "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
           "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7}, "merges": []}}
JSON
        mv "$to.part" "$to" || return
    fi
    cat "$to"/*.safetensors >/dev/null
}

ceilings() {
    if ! python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
        note ceilings all 'python3 has no torch with a GPU' SKIPPED
        return
    fi
    within 90 python3 - <<'PY'
import torch
def best(run, times=10):
    run(); run()
    took = []
    for _ in range(times):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); run(); b.record(); b.synchronize()
        took.append(a.elapsed_time(b) / 1e3)
    return min(took)
n = 2 << 30
x = torch.rand(n // 2, dtype=torch.float32, device="cuda")
y = torch.empty_like(x)
read = min(best(lambda: x.sum()), best(lambda: x.max()), best(lambda: torch.linalg.vector_norm(x, 1)))
copy = best(lambda: y.copy_(x))
a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
c = torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda")
matrix = best(lambda: torch.matmul(a, b, out=c))
host = torch.ones(256 << 20, dtype=torch.float32).pin_memory()
h2d = best(lambda: y[: 256 << 20].copy_(host, non_blocking=True))
size = x.numel() * 4
print(f"READ_GBS={size / read / 1e9:.0f}")
print(f"COPY_GBS={2 * size / copy / 1e9:.0f}")
print(f"BF16_TFLOPS={2 * 8192**3 / matrix / 1e12:.0f}")
print(f"H2D_GBS={(1 << 30) / h2d / 1e9:.1f}")
PY
    local rc=$?
    if ((rc)); then note ceilings all "$(reason $rc)" FAIL; return; fi
    grep -E '^[A-Z0-9_]+=' "$said" >"$work/ceilings"
    while IFS='=' read -r name value; do note ceilings "$name" "$value" MEASURED; done <"$work/ceilings"
}
ceiling() { sed -n "s/^$1=//p" "$work/ceilings" 2>/dev/null; }

# tests STAGE SECONDS PROGRAM [ARGS]: a test binary; a skip in it is one here.
tests() {
    local stage=$1 most=$2 name=$3 rc began=$SECONDS
    shift 3
    need "$stage" "$name" || return
    : >"$work/skips"
    within "$most" env PORTOLAN_SKIP_LOG="$work/skips" "$@" "$bin/$name" --nocapture
    rc=$?
    local passed
    passed=$(grep -oE '[0-9]+ passed; [0-9]+ failed' "$said" | tail -n 1)
    if ((rc)); then
        note "$stage" "$name" "${passed:-no result}: $(reason $rc)" FAIL
    elif [[ -s $work/skips ]]; then
        note "$stage" "$name" "$passed; $(sort -u "$work/skips" | head -n 1)" SKIPPED
    else
        note "$stage" "$name" "$passed, $((SECONDS - began)) s" PASS
    fi
}
conformance() {
    tests conformance 400 conformance env PORTOLAN_TEST_SAMPLE="$sample"
    cp "$said" "$out/conformance.txt"
    [[ -x $bin/conformance ]] || return
    local cases variants
    read -r variants cases < <(awk 'NF == 8 && $8 ~ /%$/ { n++; s += $4 } END { print n + 0, s + 0 }' "$said")
    note conformance 'one case in' "$sample: $cases cases of $variants variants and types" MEASURED
}
families() {
    if [[ -z ${PORTOLAN_ORACLE:-} ]]; then
        note families all 'set PORTOLAN_ORACLE, or put crates/testkit/data into DIR/data' SKIPPED
        return
    fi
    tests families 200 oracle env
    tests families 200 gpu env
}

# The value of a line of a profile, and the tensors and bytes that its uploads name.
profile() { sed -n "s/^$2  *//p" "$1" | head -n 1; }
uploaded() { profile "$1" "$2: uploads" | sed -nE 's/.* copies of ([0-9]+) bytes$/\1/p'; }
count_of() { profile "$1" "$2: uploads" | sed -nE "s/.*$3 ([0-9]+).*/\1/p"; }

# What an arm's counters must say.
counters_hold() {
    local file=$1 load=$2 pinned=$3 idle=prefill busy=load on=pinned off=pageable
    if [[ $load == lazy ]]; then idle=load busy=prefill; fi
    if [[ $pinned == 0 ]]; then on=pageable off=pinned; fi
    [[ $(uploaded "$file" $idle) == 0 ]] || return 1
    [[ $(count_of "$file" $busy $on) -gt 0 && $(count_of "$file" $busy $off) == 0 ]] || return 1
    [[ $(uploaded "$file" $busy) -gt 0 ]] || return 1
    grep -q 'cross-stream waits 0;' "$file" || return 1
    (($(sed -nE 's/.*pinned peak ([0-9]+) bytes.*/\1/p' "$file" | sort -n | tail -n 1) <= 256 << 20))
}
arms() {
    need arms portolan && need arms xtask || return
    : >"$out/arms.md"
    # Every family's tiny checkpoint first: the gate of verify-cuda, from the same folder.
    within 150 "$bin/xtask" verify-cuda --prebuilt "$bin" --only arms --require
    local row
    row=$(grep -E '^arms +(PASS|FAIL|SKIPPED)' "$said" | tail -n 1)
    note arms 'tiny checkpoints' "$(sed -E 's/^arms +[A-Z]+ +//' <<<"${row:-$(reason 1)}")" "$(awk '{ print $2 }' <<<"${row:-arms FAIL}")"
    local name load pinned arm file rc first tokens files
    for name in "${models[@]}"; do
        model "$name" || { note arms "$name" "no checkpoint: $(reason $?)" FAIL; continue; }
        within 240 "$bin/portolan" ports --warm "$work/models/$name" --device cuda || {
            note arms "$name" "kernels: $(reason $?)" FAIL
            continue
        }
        note arms "$name warm" "$(tail -n 1 "$said")" MEASURED
        first='' files=()
        for load in eager lazy; do
            for pinned in 1 0; do
                arm=$load-$([[ $pinned == 1 ]] && echo pinned || echo pageable)
                file=$work/$name-$arm.profile
                within 120 env PORTOLAN_PINNED_LOAD=$pinned "$bin/portolan" generate -m "$work/models/$name" \
                    --device cuda --load $load -p abcdefghhgfedcbaabcdefghhgfedcba --no-chat-template --ignore-eos \
                    -n 16 --temp 0 --seed 0 --json --profile
                rc=$?
                if ((rc)); then note arms "$name $arm" "$(reason $rc)" FAIL; continue; fi
                cp "$said" "$file"
                files+=("$file")
                tokens=$(grep -o '"tokens":\[[^]]*\]' "$file")
                first=${first:-$tokens}
                note arms "$name $arm" "load $(profile "$file" load), load + first token $(profile "$file" 'load + first token'), decode $(profile "$file" decode)" \
                    "$(verdict counters_hold "$file" $load $pinned)"
                note arms "$name $arm tokens" "$(cut -c1-60 <<<"$tokens")" \
                    "$(verdict [ -n "$tokens" -a "$tokens" = "$first" ])"
            done
        done
        ((${#files[@]})) && profiles "$name" "${files[@]}" >>"$out/arms.md"
    done
    cat "$out/arms.md" >>"$log"
}
# All lines of some profiles as one table, a column a file.
profiles() {
    local name=$1
    shift
    awk -v name="$name" '
        FNR == 1 { arm = FILENAME; sub(".*/" name "-", "", arm); sub(".profile", "", arm); arms[++n] = arm }
        /^[a-z+:& ]+  / && substr($0, 20, 1) == " " {
            key = substr($0, 1, 19); sub(/ +$/, "", key)
            value = substr($0, 21); gsub("; ", "<br>", value)
            if (!(key in seen)) { seen[key]; order[++m] = key }
            cell[key, arm] = value
        }
        END {
            printf "\n### %s\n\n| |", name
            for (i = 1; i <= n; i++) printf " %s |", arms[i]
            printf "\n|---|"
            for (i = 1; i <= n; i++) printf "---|"
            print ""
            for (k = 1; k <= m; k++) {
                printf "| %s |", order[k]
                for (i = 1; i <= n; i++) printf " %s |", cell[order[k], arms[i]]
                print ""
            }
        }' "$@"
}

load() {
    need load load || return
    within 200 "$bin/load" --bench
    local rc=$?
    cp "$said" "$out/load.txt"
    if ((rc)); then note load all "$(reason $rc)" FAIL; return; fi
    local rate
    rate() { awk -v arm="$1" -v readers="$2" -v back="$3" 'index($0, arm) == 1 && $(NF - 5) == readers { print $(NF - back) }' "$said"; }
    local arm readers
    for readers in 1 8; do
        for arm in bare 'four slots' 'pinned per tensor' pageable; do
            note load "$arm, $readers readers" "$(rate "$arm" $readers 3) GB/s, $(rate "$arm" $readers 0) of bare" MEASURED
        done
    done
    note load 'four slots, of bare' "$(rate 'four slots' 8 0), at least 0.9" "$(verdict at_least "$(rate 'four slots' 8 0)" 0.9)"
    # An aim and no gate: what the cores can copy out of the page cache decides it.
    note load 'four slots, GB/s' "$(rate 'four slots' 8 3), aim 35" MEASURED
    local slots each
    slots=$(rate 'four slots' 8 4) each=$(rate 'pinned per tensor' 8 4)
    local times
    times=$(awk -v a="$each" -v b="$slots" 'BEGIN { if (b > 0) printf "%.1f", a / b }')
    note load 'pinned per tensor takes' "$times times as long, at least 8" "$(verdict at_least "$times" 8)"
}

# Least bytes a decoded token reads, and operations of a prefilled one, from a checkpoint's own headers:
# WEIGHT_BYTES KV_BYTES_A_POSITION PARAMETERS_A_TOKEN HEAD_PARAMETERS ATTENTION_COLUMNS
floors() {
    python3 - "$1" <<'PY'
import glob, json, struct, sys
folder = sys.argv[1]
c = json.load(open(folder + "/config.json"))
sizes = {}
for path in glob.glob(folder + "/*.safetensors"):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    for name, t in header.items():
        if name != "__metadata__":
            sizes[name] = t["data_offsets"][1] - t["data_offsets"][0]
untied = any(name.startswith("lm_head") for name in sizes)
# A row of an embedding of its own is nothing beside the rest.
weights = sum(s for name, s in sizes.items() if not (untied and "embed_tokens" in name))
h, i, layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
d = c.get("head_dim") or h // heads
body = layers * (2 * h * heads * d + 2 * h * kv * d + 3 * h * i)
print(weights, layers * 2 * kv * d * 2, body, h * c["vocab_size"], layers * heads * d)
PY
}
speed() {
    need speed portolan && need speed xtask || return
    [[ -s $work/ceilings ]] || ceilings
    local read_gbs tflops name depth rc weights kv body head columns
    read_gbs=$(ceiling READ_GBS) tflops=$(ceiling BF16_TFLOPS)
    printf 'model,test,run,tokens,seconds,tokens_per_second\n' >"$out/speed.csv"
    for name in "${models[@]}"; do
        model "$name" || { note speed "$name" "no checkpoint: $(reason $?)" FAIL; continue; }
        read -r weights kv body head columns < <(floors "$work/models/$name")
        for depth in "${depths[@]}"; do
            within 150 "$bin/portolan" bench -m "$work/models/$name" --device cuda -p 512,2048 -n 128 -d "$depth" \
                -r "${REPETITIONS:-5}" --csv
            rc=$?
            if ((rc)); then note speed "$name at depth $depth" "$(reason $rc)" FAIL; continue; fi
            grep '^"' "$said" >>"$out/speed.csv"
            # Median, slowest and fastest of each row, and its share of the machine's limit.
            while IFS=$'\t' read -r test text rate; do
                local ends=MEASURED
                case $name:$test in
                    qwen3-0.6b:tg128) ends=$(verdict at_least "$rate" 900) text+=', at least 900' ;;
                    llama-3.1-8b:tg128) ends=$(verdict at_least "$rate" 340) text+=', at least 340' ;;
                esac
                note speed "$name $test" "$text" "$ends"
            done < <(grep '^"' "$said" | sort -t, -k2,2 -k6,6g | awk -F, -v depth="$depth" \
                -v w="${weights:-0}" -v kv="${kv:-0}" -v body="${body:-0}" -v head="${head:-0}" \
                -v cols="${columns:-0}" -v gbs="${read_gbs:-0}" -v tflops="${tflops:-0}" '
                function tell(  n, mid, share, what) {
                    n = count[last]
                    mid = (rate[int((n + 1) / 2)] + rate[int((n + 2) / 2)]) / 2
                    if (last ~ /^tg/) {
                        share = gbs ? mid * (w + kv * (depth + tokens / 2)) / gbs / 1e7 : 0
                        what = "of the read bandwidth"
                    } else {
                        share = (2 * body + 4 * cols * (depth + tokens / 2)) * tokens + 2 * head
                        share = tflops ? share * mid / tokens / tflops / 1e10 : 0
                        what = "of the matrix rate"
                    }
                    share = share && w ? sprintf(", %.1f %% %s", share, what) : ""
                    printf "%s\t%.1f tok/s (%.1f to %.1f)%s\t%.1f\n", last, mid, rate[1], rate[n], share, mid
                }
                $2 != last { if (last != "") tell(); last = $2 }
                { rate[++count[$2]] = $6; tokens = $4 }
                END { if (last != "") tell() }')
        done
    done
}

smollm2() {
    need smollm2 portolan || return
    local text=${TEXT:-${PORTOLAN_ORACLE:-}/smollm2/gpl-3.txt}
    if [[ -z ${SMOLLM2:-} ]]; then note smollm2 all 'set SMOLLM2 to the .gguf' SKIPPED; return; fi
    if [[ ! -f $text ]]; then note smollm2 all 'set TEXT to a text of 3000 tokens' SKIPPED; return; fi
    local exact=$work/exact.trace rc width type error own=()
    : >"$out/traces.txt"
    trace() { within 150 "$bin/portolan" trace -m "$SMOLLM2" --text "$text" --positions "${POSITIONS:-2000}" "$@"; }
    # compare WHAT ERROR FILE FILE: a row with the numbers and the verdict of compare-traces.
    compare() {
        within 60 "$bin/portolan" compare-traces --error "$2" --other-width "$3" "$4"
        rc=$?
        { printf '\n== %s, stated error of a logit %s\n' "$1" "$2"; cat "$said"; } >>"$out/traces.txt"
        local numbers
        numbers=$(awk '/^disagreements/ { d = $2 } /^largest margin/ { m = $NF } /^KL div/ { sub(",", "", $4); k = $4 }
            /^decided disagreements/ { b = $3 } /^perplexity delta/ { p = $3 } /^logits +differ/ { l = $4 }
            END { print d " disagreements, largest margin " m ", decided " b ", KL " k ", perplexity " p ", logits " l }' "$said")
        case $rc in
            0) note smollm2 "$1" "$numbers" PASS ;;
            4) note smollm2 "$1" "$numbers" INCONCLUSIVE ;;
            3) note smollm2 "$1" "$numbers" FAIL ;;
            *) note smollm2 "$1" "$(reason $rc)" FAIL ;;
        esac
    }
    # A row of an exact trace does not depend on the width, so one serves all three.
    trace --device cpu --exact --width 256 -o "$exact"
    rc=$?
    if ((rc)); then note smollm2 'exact on the CPU' "$(reason $rc)" FAIL; return; fi
    for type in f32 f16 bf16; do
        # The error of a logit that each type claims for itself. With f32 the cache is f32 too.
        own=() error=0.1
        if [[ $type == f32 ]]; then own=(--cache-type f32); fi
        if [[ $type == bf16 ]]; then error=0.5; fi
        for width in 1 8 256; do
            local file=$work/$type-$width.trace
            trace --device cuda --activations "$type" "${own[@]}" --width "$width" -o "$file"
            rc=$?
            if ((rc)); then note smollm2 "$type, width $width" "$(reason $rc)" FAIL; continue; fi
            compare "CPU exact, CUDA $type, width $width" $error "$exact" "$file"
        done
    done
    for width in 1 8 256; do
        [[ -f $work/bf16-$width.trace ]] || continue
        PORTOLAN_PORT_GATE_UP=0 trace --device cuda --activations bf16 --width "$width" -o "$work/control.trace"
        rc=$?
        if ((rc)); then note smollm2 "control, width $width" "$(reason $rc)" FAIL; continue; fi
        compare "control: CUDA bf16, gate_up taken apart, width $width" 0.5 "$work/bf16-$width.trace" "$work/control.trace"
    done
}

sanitizer() {
    need sanitizer conformance || return
    local program
    program=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
    if [[ -z $program ]]; then note sanitizer all 'compute-sanitizer is not there' SKIPPED; return; fi
    local tool rc summary cases
    : >"$out/sanitizer.txt"
    for tool in "${tools[@]}"; do
        # The test itself fails, since so small a sample does not reach every variant: the tool's summary counts.
        within 150 env PORTOLAN_TEST_SAMPLE="${SANITIZER_SAMPLE:-250}" "$program" --tool "$tool" --print-limit 20 \
            "$bin/conformance" --nocapture every_variant
        rc=$?
        { printf '\n== %s\n' "$tool"; cat "$said"; } >>"$out/sanitizer.txt"
        summary=$(grep -E '(ERROR|RACECHECK) SUMMARY' "$said" | tail -n 1 | sed 's/^=* *//')
        cases=$(awk 'NF == 8 && $8 ~ /%$/ { s += $4; f += $5 } END { print s + 0 " cases, " f + 0 " failed" }' "$said")
        if [[ -z $summary ]]; then
            note sanitizer "$tool" "$(reason $rc)" FAIL
        else
            note sanitizer "$tool" "$cases; $summary" \
                "$(verdict grep -qE '^[1-9][0-9]* cases, 0 failed; .*SUMMARY: 0 (errors|hazards)' <<<"$cases; $summary")"
        fi
    done
}

{
    printf '# CUDA on %s\n\n' "$(date -u +%Y-%m-%d)"
    printf -- '- commit: %s\n' "${COMMIT:-$(cat "$bin/commit" 2>/dev/null || echo unknown)}"
    printf -- '- GPU, driver, memory: %s\n' "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1 || echo none)"
    printf -- '- host: %s, %s cores\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)"
    printf -- '- stages: %s\n' "${stages[*]}"
} >"$out/head.txt"
cat "$out/head.txt" | tee -a "$log"
for stage in "${all[@]}"; do
    [[ " ${stages[*]} " == *" $stage "* ]] || continue
    printf '\n== %s (%s s left)\n' "$stage" "$(left)" | tee -a "$log"
    began=$SECONDS
    if (($(left) < 5)); then note "$stage" all "the $limit s are over" SKIPPED; continue; fi
    "$stage"
    echo "$stage took $((SECONDS - began)) s" | tee -a "$log"
done
{
    cat "$out/head.txt"
    printf '\n| stage | what | found | |\n|---|---|---|---|\n'
    awk -F'\t' '{ printf "| %s | %s | %s | %s |\n", $1, $2, $3, $4 }' "$rows"
    if [[ -s $out/arms.md && " ${stages[*]} " == *' arms '* ]]; then
        printf '\n## Profiles of the load arms\n'
        cat "$out/arms.md"
    fi
} >"$out/table.md"
rm -f "$out/head.txt" "$out/arms.md"
printf '\n'
cat "$out/table.md"
printf '\n%s s; %s\n' "$SECONDS" "$(cut -f4 "$rows" | sort | uniq -c | awk '{ printf "%s%s %s", s, $1, $2; s = ", " }')"
! grep -q $'\tFAIL$' "$rows"
