"""The table of commands: words, flags, config, functions; and the text of `--help`, for all commands or one.

A new command or flag is one entry here. Functions are named as "module:function": nothing heavy is imported here.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flows.config.validate import config_groups
from tasks.search.choose import FILE_END, FORMS

MODEL_END = ".onnx"
EVERYWHERE = ("--cfg", "--package", "--json", "--config-dir", "--help")
OF_STAGES = ("--dry-run", "--multirun", *EVERYWHERE)


class Flag(NamedTuple):
    """A flag's written form, and its help."""

    form: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command. `forms`: arguments after its name. `flags`: flags that it takes. `groups`: groups whose settings it reads."""

    summary: str
    about: str = ""
    forms: tuple[str, ...] = ("[OVERRIDE…] [FLAG…]",)
    flags: tuple[str, ...] = OF_STAGES
    groups: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    is_word: Callable[[str], bool] = lambda text: False
    """Whether an argument is a name or a file, not an override."""
    actions: Mapping[str, str] = field(default_factory=dict)
    """Forms of the actions that the first word chooses, with their help."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The options of each action."""
    page: str = "autotailor --help"
    """The command line that explains the actions."""
    run: str = ""
    """The function of a command that works no stage, called with the arguments and their config."""
    config: str = ""
    """The pydantic model of `conf/<command>.yaml`; empty: the command works stages."""
    check: str = ""
    """A function of the arguments before they are composed. It returns those to compose, or raises UserError."""
    check_config: str = ""
    """A function of the arguments and the validated config. It raises UserError."""
    service: str = ""
    """The function of a command with its own arguments and help, called with its words."""
    until: str = ""
    """The stage that it works up to; empty: the stage of its name."""
    retargets: Literal["never", "supernet=", "always"] = "never"
    """When it starts from a given SuperNet; "supernet=": with this option."""
    asks: Literal["", "rule", "pair", "files"] = ""
    """The form of its question to a search."""
    plans: bool = False
    """Whether its dry run enumerates operators and reports the expected measuring time."""
    is_found_again: bool = False
    """Whether its result is found again when all stages are complete."""


def loaded(place: str) -> Any:
    """The object of `module:name`; the module is imported now."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _without_sign(text: str) -> bool:
    return "=" not in text


VIEW_FILE = "supernet.html"
CHOSEN_FOLDER = "chosen"

FLAGS = {
    "--budget-ms": Flag("--budget-ms MS", "the best SubNet within so many milliseconds"),
    "--accuracy-share": Flag(
        "--accuracy-share S", "the fastest SubNet with at least this share of the base accuracy: 0.95"
    ),
    "--knee": Flag("--knee", "the SubNet at the knee of the front"),
    "--data": Flag("--data PATH", "samples: pictures or arrays without labels, or FILE.py:function"),
    "--minutes": Flag("--minutes N", "what it may take; the plan is told first"),
    "--device": Flag("--device NAME", "on this device alone"),
    "--to": Flag(
        "--to FILE.json", f"where the chosen SubNet is written; {CHOSEN_FOLDER}/DEVICE.json in the output folder"
    ),
    "--view": Flag("--view [FILE.html]", f"a page that shows the SuperNet; {VIEW_FILE} in the output folder"),
    "--dry-run": Flag("--dry-run", "only tell which stages are complete, which would be worked, and why"),
    "--cfg": Flag("--cfg job, -c job", "only show the config that the command would use, validated, as YAML"),
    "--package": Flag(
        "--package NAME, -p NAME", "with --cfg job: only this part of it, such as finetune or device.ncnn"
    ),
    "--json": Flag("--json FILE", "write the result as JSON"),
    "--multirun": Flag("--multirun, -m", "run every combination of comma choices (KEY=a,b)"),
    "--config-dir": Flag("--config-dir FOLDER", "more options for the groups, as in conf/: FOLDER/device/board.yaml"),
    "--help": Flag("--help, -h", "this text, with the options of --config-dir; COMMAND --help is about one command"),
}
"""The flags, in the order of the help."""

RULES = ("--budget-ms", "--accuracy-share", "--knee")

_RUN = ("preset", "tracking")
_SUPERNET = ("model", "data", "problem", "space", "compile")
_COMPILE = (*_SUPERNET, "pretraining", "base")
_FINETUNE = (*_COMPILE, "finetune")
_ENUMERATE = (*_SUPERNET, "device")
_PROFILE = (*_ENUMERATE, "runtime_options", "profile")
_MEASURED = ("device", "runtime_options", "profile", "predict", "evaluate", "resources")
_ADAPT = (
    "data",
    "problem",
    *_MEASURED,
    "search",
    "refine",
    "runtime",
    "exits",
    "baselines",
    "export",
    "partition",
    "report",
)
_STREAM = ("drift", "adaptation", "stream")
_ALL = (*_FINETUNE, *_ADAPT[2:], *_STREAM)

LUT_ACTIONS = {
    "show": "devices, operators, failed and noisy ones, age",
    "diff DEVICE DEVICE": "ratios of two devices for each operator type, operators that only one has",
    "export FILE.csv": "all entries as CSV",
    "merge SRC… DST": "take over what stores SRC know and store DST does not, or knows from earlier",
    "compact": "one file in the place of many; safe while others read and write",
}

FLEET_ACTIONS = {
    "serve": "the registry that devices enrol at, tell, and fetch bundles from",
    "relay": "where enrolled devices pull the models that are measured on them",
    "enrol": "tokens with which count=N devices may enrol, into to=FILE",
    "devices": "all of them: kind, owner, last seen, bundle, the last check",
    "remove DEVICE": "its token counts no more",
    "profile FOLDER": "one table for devices of one kind, which share its operators and find outliers",
    "add FOLDER": "a bundle, for roll-outs",
    "rollout DIGEST": "give a bundle to 1 % of the devices, then 10 %, then all, or halt",
    "rollouts": "all of them: state, stage, devices reached, the last reason",
    "halt N": "roll-out N ends; its devices go back to the bundle before",
    "go-on N": "the next stage of a roll-out that asks",
}

_PLACE: tuple[str, ...] = ("database", "window_s")
_BOUND = ("host", "tls_cert", "tls_key", "allowed_hosts", "insecure_bind")
FLEET_OPTIONS: dict[str, tuple[str, ...]] = {
    "serve": (*_PLACE, *_BOUND, "files", "port"),
    "relay": (*_PLACE, *_BOUND, "relay_port", "token_file", "max_model_mib"),
    "enrol": (*_PLACE, "count", "to", "owner", "valid_hours"),
    "profile": (*_PLACE, "relay", "token_file", "ca_file", "store", "profile"),
    "add": (*_PLACE, "files", "name", "key_file"),
    "rollout": (*_PLACE, "kinds", "rollout"),
    **dict.fromkeys(("devices", "remove", "rollouts", "halt", "go-on"), _PLACE),
}
_STORE: tuple[str, ...] = ("output_dir", "store")
LUT_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("show", "export"), (*_STORE, "devices", "operators", "methods")),
    "diff": (*_STORE, "operators", "methods"),
    "merge": (),
    "compact": _STORE,
}

COMMANDS = {
    "run": Command(
        summary="the whole pipeline: your image classifier, any device, the best SubNet for every budget",
        about="Trains the network where it has no weights, makes a SuperNet of it, trains that, measures its operators on "
        "each device, searches the best SubNet for every latency budget, and writes, checks and measures their files. "
        "The end is report.html in the output folder.",
        groups=(*_ALL, *_RUN),
        examples=(
            "autotailor run +preset=quick",
            "autotailor run model=timm model.name=resnet26 device=[ncnn] search.budgets_ms=[1,2] finetune.epochs=3 "
            "output_dir=runs/a",
            "autotailor run model=onnx model.path=net.onnx data=imagefolder data.path=photos",
            "autotailor run device=[remote] device.remote.agent=http://board:8750 device.remote.token_file=token",
            "autotailor run --multirun finetune.epochs=2,4 +preset=quick",
            "autotailor run +preset=quick finetune.epochs=4 --dry-run",
        ),
        until="report",
        is_found_again=True,
    ),
    "tailor": Command(
        summary="the whole pipeline in short: tailor NET --data PATH",
        about="The same as run, for a network that is trained already: an .onnx file, FILE.py:function or a name of timm with "
        "published weights. Without labels its own answers are the targets. --budget-ms may have several values: 2,4,8. All "
        "options of run follow.",
        forms=("NET --data PATH [--budget-ms MS] [--minutes N] [--device NAME] [OVERRIDE…] [FLAG…]",),
        flags=("--data", "--budget-ms", "--minutes", "--device", *OF_STAGES),
        groups=(*_ALL, *_RUN),
        examples=(
            "autotailor tailor net.onnx --data photos --budget-ms 4 --minutes 10",
            "autotailor tailor mine.py:network --data mine.py:splits --device onnxruntime export.bundle=true",
        ),
        until="report",
        is_found_again=True,
        is_word=_without_sign,
    ),
    "nightly": Command(
        summary="the whole pipeline, compared with the night before: what changed, what got worse, trends",
        about="The same as run, with the same options every night. Stages whose inputs are as they were are not worked again; "
        "operators and SubNets are timed anew on each device. nights.html in the output folder says what changed since the "
        "night before, what got worse by more than noise, and trends. One message says what regressed, and the exit "
        "code is 3; else the night's SuperNet and bundles become the champions of MLflow's model registry. With "
        "supernet=FOLDER each night retargets that SuperNet to the devices, as retarget does, and trains nothing.",
        forms=("[OVERRIDE…] [FLAG…]", "supernet=FOLDER [OVERRIDE…] [FLAG…]"),
        flags=("--dry-run", *EVERYWHERE),
        groups=(*_ALL, "nightly", *_RUN),
        examples=(
            "autotailor nightly +preset=nightly",
            "autotailor nightly +preset=quick nightly.slower=0.1 nightly.webhook_file=webhook.txt",
            "autotailor nightly supernet=outputs/supernet device=[ncnn] output_dir=outputs/adapted",
        ),
        until="report",
        retargets="supernet=",
    ),
    "compile": Command(
        summary="make a SuperNet of the network",
        about="Finds what can be cut in the network and makes a SuperNet of it: its variables, their choices, and how many "
        "different SubNets they give. A network without weights is trained first.",
        flags=("--view", *OF_STAGES),
        groups=(*_COMPILE, *_RUN),
        examples=(
            "autotailor compile model=timm model.name=resnet26 --view supernet.html",
            "autotailor compile model.name=resnet26 space.resolution=[24,32] space.depth=auto",
        ),
    ),
    "finetune": Command(
        summary="… and train it",
        about="Trains the SuperNet, so that all its SubNets are accurate with the weights that they share. What is trained "
        "is in the line 'folder': retarget takes it, with /supernet.",
        groups=(*_FINETUNE, *_RUN),
        examples=("autotailor finetune +preset=quick finetune.epochs=4",),
    ),
    "enumerate": Command(
        summary="list every unique operator of all SubNets",
        about="Counts the SubNets, and lists every operator that any of them has, once: what there is to measure on a "
        "device. Trains nothing.",
        groups=(*_ENUMERATE, *_RUN),
        examples=("autotailor enumerate +preset=resnet50 --json operators.json",),
    ),
    "profile": Command(
        summary="… and measure each on the devices",
        about="Chooses the options of each device's runtime, measures every unique operator on it, and keeps the "
        "latencies in look-up tables that all runs share. Trains nothing. With --dry-run: what each device knows already, "
        "and how long the rest takes.",
        groups=(*_PROFILE, *_RUN),
        examples=(
            "autotailor profile +preset=mobilenetv2 device=[ncnn] --dry-run",
            "autotailor profile device=[onnxruntime] profile.remeasure=[noisy]",
        ),
        plans=True,
    ),
    "predict": Command(
        summary="build and check the latency and accuracy predictors",
        about="Makes the predictors of accuracy, latency, memory and energy, and states their errors on SubNets that they "
        "were not made from.",
        groups=(*_FINETUNE, *_MEASURED, *_RUN),
        examples=("autotailor predict +preset=quick predict.random_subnets=20 --json errors.json",),
    ),
    "search": Command(
        summary="… and find the best SubNet for every latency budget",
        about="Finds the best SubNet within each latency budget, on each device, by prediction. With one of the flags "
        f"{', '.join(RULES)} it chooses one SubNet for each device, shows its stages and where its latency goes, "
        "and writes it into a file that compare and export take.",
        forms=(
            "[OVERRIDE…] [FLAG…]",
            "[OVERRIDE…] --budget-ms MS | --accuracy-share S | --knee [--device NAME [--to FILE.json]]",
        ),
        flags=(*RULES, "--device", "--to", *OF_STAGES),
        groups=(*_FINETUNE, *_MEASURED, "search", *_RUN),
        examples=(
            "autotailor search search.budgets_ms=[1,2,4] --json winners.json",
            "autotailor search --budget-ms 2 --device ncnn --to fast.json",
            "autotailor search --accuracy-share 0.95 search=exact",
        ),
        asks="rule",
    ),
    "compare": Command(
        summary="… and show two SubNets layer by layer: compare A B",
        about="Lays two SubNets of a search side by side, layer by layer: operators, channels, predicted latency, and what "
        f"differs. A SubNet is {FORMS}.",
        forms=("A B [OVERRIDE…] [FLAG…]",),
        flags=("--device", "--multirun", *EVERYWHERE),
        groups=(*_FINETUNE, *_MEASURED, "search", *_RUN),
        examples=("autotailor compare 1ms 2ms --device ncnn --json difference.json", "autotailor compare largest knee"),
        until="search",
        asks="pair",
        is_word=_without_sign,
    ),
    "stream": Command(
        summary="… and play a stream of images that drift: the error of SubNets over time, under each method",
        about="The original network, the largest SubNet and the winner of the smallest budget (stream.subnets) play a stream "
        "of corrupted images (drift=…) under each method of stream.methods: as they are, and adapting without labels. Shows "
        "their errors on the whole stream and under each corruption, and writes errors by window, events of the guard, and "
        "side files of what has adapted. With stream.subnets=[original,largest] nothing is searched or measured.",
        groups=(*_FINETUNE, *_MEASURED, "search", "refine", *_STREAM, *_RUN),
        examples=(
            "autotailor stream +preset=quick stream.subnets=[original,largest] stream.methods=[source,batchnorm,guarded]",
            "autotailor stream drift=mixed drift.severity=3 drift.images=200",
            "autotailor stream drift=one_by_one stream.methods=[source,guarded] --json errors.json",
        ),
    ),
    "export": Command(
        summary="… and write, check and measure their ONNX and NCNN files",
        about="Writes the files of every winner, compares their outputs with torch, evaluates them, and measures them on "
        "the device. The files and a model card for each are in the line 'folder'. With files that search wrote: those of "
        "their SubNets alone, each on its device.",
        forms=("[FILE.json…] [OVERRIDE…] [FLAG…]",),
        groups=(*_FINETUNE, *_MEASURED, "search", "refine", "runtime", "exits", "export", *_RUN),
        examples=("autotailor export search.budgets_ms=[2] device=[ncnn] export.formats=[onnx,ncnn_fp16]",),
        asks="files",
        is_word=lambda text: "=" not in text and text.endswith(FILE_END),
    ),
    "report": Command(
        summary="… and write report.html (the same as run)",
        about="The same as run: whatever is missing is worked, and report.html is written anew.",
        groups=(*_ALL, *_RUN),
        examples=("autotailor report +preset=quick report.accuracy_points=1",),
    ),
    "retarget": Command(
        summary="an existing SuperNet to other devices: supernet=FOLDER device=[…]",
        about="Takes a trained SuperNet to other devices: everything from enumerate to the report, and no training. Give "
        "it the data options of the run that made the SuperNet. With --dry-run: what each device knows already, and "
        "how long the rest takes.",
        forms=("supernet=FOLDER [OVERRIDE…] [FLAG…]",),
        groups=(*_ADAPT, "tracking"),
        examples=("autotailor retarget supernet=outputs/supernet device=[ncnn]",),
        retargets="always",
        plans=True,
        is_found_again=True,
    ),
    "deploy": Command(
        summary="a bundle and the run time onto a device, checked there and started: deploy DEVICE",
        about="Takes the bundle of the latest run for the device (export.bundle=true), and the wheel of the run time, over ssh "
        "or into a folder of this machine; installs, compares the answers of the device with those in the bundle, and starts "
        "the service. Where answers differ, or the service does not become ready, the former release is back. After an "
        "interruption the same command goes on.",
        forms=("DEVICE [OVERRIDE…] [FLAG…]",),
        flags=EVERYWHERE,
        groups=("device",),
        examples=(
            "autotailor deploy onnxruntime deploy.folder=/srv/model deploy.budget_ms=5",
            "autotailor deploy ssh device.ssh.ssh.host=user@board deploy.bundle=outputs/exports/ncnn/bundle",
            "autotailor deploy board --config-dir devices deploy.wheels=wheels deploy.start=false",
        ),
        is_word=_without_sign,
        config="flows.config:DeployConfig",
        check="flows.cli.bundles:with_device",
        check_config="flows.cli.bundles:check_deployed",
        run="flows.cli.bundles:deploy_bundle",
    ),
    "stress": Command(
        summary="a bundle served while other processes come and go, and what it did: stress DEVICE",
        about="Serves the bundle of the latest run for the device (export.bundle=true) on this machine, adapting, within a "
        "latency budget (1.3 times the latency of its most accurate SubNet), beside a service of that SubNet alone. Asks both "
        "for the images in the bundle, while processes that compute come and go. Shows for each phase how many answers came "
        "in time, how accurate they were and which SubNets gave them, and each switch with its reason. The services have a "
        "live page; all processes end with the command, also where it is killed.",
        forms=("DEVICE [OVERRIDE…] [FLAG…]", "stress.bundle=FOLDER [OVERRIDE…] [FLAG…]"),
        flags=EVERYWHERE,
        examples=(
            "autotailor stress onnxruntime",
            "autotailor stress ncnn stress.budget_ms=5 stress.seconds=60 --json stress.json",
            "autotailor stress stress.bundle=outputs/exports/ncnn/bundle stress.bandwidth_processes=2",
            "autotailor stress onnxruntime stress.trace=load.json stress.cache_processes=1 stress.memory_processes=1",
        ),
        is_word=_without_sign,
        config="flows.config.bundles:StressConfig",
        check_config="flows.cli.bundles:check_stressed",
        run="flows.cli.bundles:stress_bundle",
    ),
    "partition": Command(
        summary="a SubNet over several devices: partition.devices=[COORDINATOR,DEVICE…]",
        about="Reads the tables of a finished run, and finds where the operators of a SubNet run fastest for given "
        "links: on the coordinator, on others, or split where that pays. Shows all cuts with the bytes that cross them and the "
        "exact plan for each bandwidth beside the plans of other methods, and writes them as a page. With "
        "partition.parts=FOLDER the segments of the first plan are written as ONNX files; with partition.plans=FOLDER all "
        "segments, and the plans among which the coordinator changes at run time. `autotailor run` with partition.devices or "
        "partition.links has cuts and plans of its largest SubNet in its report.",
        flags=EVERYWHERE,
        groups=("partition",),
        examples=(
            "autotailor partition partition.devices=[ncnn,onnxruntime] partition.bandwidth_mbps=[1,10,100]",
            "autotailor partition partition.devices=[phone,server] partition.private=3 --json plan.json",
        ),
        config="flows.cli.partition:PartitionConfig",
        check_config="flows.cli.partition:check",
        run="flows.cli.partition:execute",
    ),
    "lut": Command(
        summary="look-up tables: show, diff, export, merge, compact",
        about="Looks at the look-up tables of a store, compares two, and moves what was measured between stores. The "
        "options devices, operators and methods filter, store=FOLDER names the store.",
        forms=tuple(f"{form} [OPTION…]" for form in LUT_ACTIONS),
        flags=EVERYWHERE,
        examples=("autotailor lut show operators=[Conv]", "autotailor lut diff ncnn onnxruntime"),
        is_word=_without_sign,
        actions=LUT_ACTIONS,
        options=LUT_OPTIONS,
        config="flows.cli.lut:LutConfig",
        run="flows.cli.lut:execute",
    ),
    "convert": Command(
        summary="an .onnx file with fewer nodes and the same outputs: convert IN.onnx OUT.onnx",
        about="onnxslim fuses operators, merges duplicates, stores what no input reaches, and removes what changes nothing; "
        "own rules fold scales and shifts into convolutions. After each rule the outputs for random inputs are compared with "
        "the original's by onnxruntime; a rule that changes them is undone, and named. Options: check=false leaves that out, "
        "seed=N draws other inputs, fewest=true also takes nodes out of Gelus, which runtimes then run slower.",
        forms=("IN.onnx OUT.onnx [OPTION…] [FLAG…]",),
        flags=EVERYWHERE,
        examples=("autotailor convert network.onnx smaller.onnx --json conversion.json",),
        is_word=lambda text: "=" not in text or text.endswith(MODEL_END),
        config="flows.cli.convert:ConvertConfig",
        check="flows.cli.convert:check",
        run="flows.cli.convert:execute",
    ),
    "fleet": Command(
        summary="many devices: enrol them, profile them together, and roll out bundles: "
        "fleet serve|relay|enrol|devices|remove|profile|add|rollout|rollouts|halt|go-on",
        about="Keeps a registry of devices (database=URL, files=FOLDER) and serves it to them (fleet serve). A bundle reaches "
        "1 % of the devices first, then 10 %, then all; it is halted, and devices go back, when sums over their requests say "
        "that latency, attainment, confidence or agreement got worse. Devices of one kind share a look-up table, which they "
        "measure together through one relay (fleet relay, fleet profile); one that differs from its kind is found.",
        forms=tuple(f"{form} [OPTION…]" for form in FLEET_ACTIONS),
        flags=EVERYWHERE,
        examples=(
            "autotailor fleet serve host=10.0.0.5 tls_cert=cert.pem tls_key=key.pem",
            "autotailor fleet enrol count=100 to=tokens.txt",
            "autotailor fleet add outputs/exports/ncnn/bundle name=spring",
            "autotailor fleet rollout 3f2a kinds=[camera] rollout.false_alarms=0.01",
        ),
        is_word=_without_sign,
        actions=FLEET_ACTIONS,
        options=FLEET_OPTIONS,
        page="autotailor fleet --help",
        config="flows.cli.fleet:FleetConfig",
        run="flows.cli.fleet:execute",
    ),
    "clean": Command(
        summary="what is left in an output folder, and room: clean output_dir=FOLDER",
        about="Tells what killed runs left of unfinished stages, what was quarantined as damaged, and, at a URL, contents of "
        "files that no stage refers to any more: how many, how large and how old. remove=true removes those that are older "
        "than older_than_days (7), but nothing that another process is at. stages=true counts complete stages, too, that no "
        "run and no latest night refers to. A folder is cleaned while no run is in it, a URL at any time.",
        forms=("[OPTION…] [FLAG…]",),
        flags=EVERYWHERE,
        examples=(
            "autotailor clean output_dir=runs/a",
            "autotailor clean output_dir=runs/a older_than_days=1 stages=true remove=true",
            "autotailor clean output_dir=s3://bucket/runs/a remove=true",
        ),
        is_word=_without_sign,
        config="flows.cli.clean:CleanConfig",
        check="flows.cli.clean:check",
        run="flows.cli.clean:execute",
    ),
    "agent": Command(
        summary="the device-side service; see 'autotailor agent --help'", flags=(), service="profiling_agents.cli:main"
    ),
    "relay": Command(
        summary="where clients meet an agent that cannot be dialled; see 'autotailor relay --help'",
        flags=(),
        service="profiling_agents.cli:relay",
    ),
}
"""The commands."""

WIDTH = 118
"""Width of running text [columns]."""

ABOUT_STAGES = """\
Every command first completes the stages that it needs; stages that are complete under the same settings, inputs and
code are not repeated. After an interruption the same command goes on."""

EXIT_CODES = "Exit code 0, 2 for bad input, 3 for a night that regressed, 130 for Ctrl-C, 143 for SIGTERM."


def general_help(config_folder: Path | None = None) -> str:
    """Commands, groups with their options (including those of `config_folder`), flags and examples."""
    commands = _table((name, command.summary) for name, command in COMMANDS.items())
    actions = _table((f"lut {form}", text) for form, text in LUT_ACTIONS.items())
    takers = {flag: [name for name, command in COMMANDS.items() if flag in command.flags] for flag in FLAGS}
    rare = {flag: f"{', '.join(names)}: " for flag, names in takers.items() if len(names) < 3}
    flags = _table((flag.form, rare.get(name, "") + flag.text) for name, flag in FLAGS.items())
    examples = "\n".join(f"  {line}" for command in COMMANDS.values() for line in command.examples)
    return (
        "usage: autotailor COMMAND [OVERRIDE…] [FLAG…]\n"
        "       autotailor COMMAND --help\n\n"
        f"commands:\n{commands}\n\n"
        f"look-up tables (devices, operators and methods filter; store=FOLDER):\n{actions}\n\n"
        f"SubNets of compare: {FORMS}\n\n"
        f"{_groups(config_groups(config_folder), config_folder)}\n\n"
        f"flags:\n{flags}\n\n"
        f"examples:\n{examples}\n\n"
        f"{ABOUT_STAGES}\n{EXIT_CODES}\n"
    )


def command_help(name: str, config_folder: Path | None = None) -> str:
    """One command: its summary, its flags, the groups that it reads, examples."""
    command = COMMANDS[name]
    usage = "\n       ".join(f"autotailor {name} {form}" for form in command.forms)
    flags = _table((flag.form, flag.text) for key, flag in FLAGS.items() if key in command.flags)
    options = config_groups(config_folder)
    groups = {group: options[group] for group in options if group in command.groups}
    parts = [f"usage: {usage}", textwrap.fill(command.about, WIDTH)]
    if command.actions:
        parts.append(f"actions:\n{_table(command.actions.items())}")
    parts.append(f"flags:\n{flags}")
    if groups:
        parts.append(_groups(groups, config_folder))
    parts.append("\n".join(["examples:", *(f"  {line}" for line in command.examples)]))
    parts.append(f"{ABOUT_STAGES}\n{EXIT_CODES}" if groups else EXIT_CODES)
    return "\n\n".join(parts) + "\n"


def _groups(groups: dict[str, list[str]], config_folder: Path | None) -> str:
    own = f"; with those of {config_folder}" if config_folder else ""
    table = _table((group, ", ".join(options)) for group, options in groups.items())
    return f"option groups (GROUP=OPTION, device=[A,B], +preset=OPTION; values: GROUP.KEY=VALUE{own}):\n{table}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Two columns."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"  {name:{width}}{text}" for name, text in rows)
