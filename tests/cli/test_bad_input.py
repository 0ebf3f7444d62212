"""What means nothing is refused by name, with a remedy, and is never answered as what is usual."""

import importlib
import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

LLAMA = "llama-3.1-8b --on h100"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"capacity {LLAMA} --workload ''", "--workload is empty"),
        (f"capacity {LLAMA} --workload= --rate 1/s", "--workload is empty"),
        (f"cost {LLAMA} --users 10 --workload ' '", "--workload is empty"),
        (f"op decode {LLAMA} --weights=''", "--weights is empty"),
        (f"export {LLAMA} --tokens 1B --to ''", "--to is empty"),
        ("models ''", "'' is empty"),
        ("doctor --python ''", "--python is empty"),
        ("run --country '' s.py", "--country is empty"),
        (f"capacity {LLAMA} --rate 1/s --quick --price 2 --provider lambda", "both set"),
        (f"plan {LLAMA} --tokens 1B --price 2 --provider lambda", "both set"),
        (f"export {LLAMA} --tokens 1B --to accelerate --driver 5parsecs", "--driver"),
        ("op matmul 64 64 64 --on h100 --against=-1", "unknown processor '-1'"),
        ("prices h100 --provider acme", "unknown provider 'acme'"),
        ("prices h100 --region mars", "unknown region 'mars'"),
        ("prices h100 --buy --spot", "--spot applies to current rental prices"),
        ("prices h100 --history --max-price 3", "--max-price applies to current rental prices"),
        ("bench --list --device gpu9", "--device belongs to a measurement"),
        ("bench --history --against nan", "--against belongs to a measurement"),
        ("lab simulate --on nonsense", "--on belongs to a task"),
        ("lab simulate --grid nan", "--grid belongs to a task"),
        ("validate --only resnet50", "--only needs --local"),
        ("validate --minutes nan", "--minutes"),
        ("validate --local --runs", "exclude each other"),
        ("pick --for finetune --model bert-base --rent --years 3", "--years applies to bought hardware"),
        ("pick --for finetune --model bert-base --rent --box", "--box applies to bought hardware"),
        ("pick --for finetune --model bert-base --rent --no-used", "--used applies to bought hardware"),
        ("pick --for learn --users 3", "--users means nothing for --for learn"),
        ("pick --for learn --deadline 3d", "--deadline means nothing for --for learn"),
        ("pick --for mixed --model bert-base --budget 500 --weights 4", "--weights means nothing for --for mixed"),
        ("pick --for mixed --model bert-base --budget 500 --top 3", "--top means nothing for --for mixed"),
        ("cost --on l40s --rules --simple", "--rules changes nothing under --simple"),
        ("cost --on l40s --rules --html x.html", "--html changes nothing under --rules"),
        ("cost --on l40s --hours 9 --simple --colo 50", "--colo changes nothing under --simple"),
        ("cost --on l40s --hours 9 --opex-per-month 5 --staff 5", "--staff changes nothing under --opex-per-month"),
        (f"cost {LLAMA} --tokens 1B --seed 3", "gpuwise cost run has no --seed"),
        (f"cost {LLAMA} --rate 1/s --peak 3", "gpuwise cost serve has no --peak"),
        ("lab simulate k.py:f --grid 1 --block 1 --arg x=1 --arg x=1", "--arg gives x more than once"),
        ("lab simulate k.py:f --grid 1 --block 1 --against this", "--against belongs to a named task"),
        ("fit t.py:make_step --on h100 --set a=1 --set a=2", "--set gives a more than once"),
        ("fit t.py:make_step --on h100 --guess nonzero=0.1 --guess nonzero=0.2", "--guess gives nonzero more than once"),
        ("fit t.py:make_step --on h100 --year 2022", "--year is for models of the catalogue"),
        ("plan t.py:make_step --on h100 --etp 2", "--etp is for models of the catalogue"),
        ("prices --template --spot", "--spot is of prices to show"),
        ("doctor --no-frameworks --fix-plan nan", "'nan' is not the name of a file"),
        ("doctor --no-frameworks --fix-plan --notes", "'--notes' is not the name of a file"),
        ("doctor --no-frameworks --limit 3s", "--limit is for starting the frameworks"),
        ("bench --export 5", "'5' is not the name of a file"),
        ("top --grafana nan", "not a kind of file"),
        ("top --grafana x.json --once", "--grafana writes its file and does nothing else"),
    ],
)
def test_nonsense_is_refused_by_name(gpuwise: Callable[..., Any], words: str, said: str) -> None:
    ran = gpuwise(*shlex.split(words))
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error: ") and ran.err.count("error: ") == 1
    assert said in ran.err and "\nhint: " in ran.err


@pytest.mark.parametrize("address", ["nan", "-1", "0", "no-such-name"])
def test_a_word_is_no_address_of_a_server(gpuwise: Callable[..., Any], address: str) -> None:
    ran = gpuwise("capacity", "llama-3.1-8b", "--on", "h100", "--rate", "1/s", f"--measure={address}")
    assert ran.code == 2 and f"{address!r} is not the address" in ran.err


@pytest.mark.parametrize("command", ["run", "tune"])
def test_a_script_may_be_given_an_empty_word(gpuwise: Callable[..., Any], command: str) -> None:
    assert "this script does not exist" in gpuwise(command, "none.py", "--name", "").err


def test_a_fit_says_which_options_make_no_difference(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("fit", "llama-3.2-1b", "--on", "h100", "--sequence-parallel", "--overlap-experts", "--json")
    assert "sequence parallelism is not used" in ran.out and "the model has no experts" in ran.out


OF_COST = (
    "--shape bursts, --peak 4, --growth 20%, --profile 1,1,1,1,1,2,2,1,1,1,1,1, --demand-spread 0.7-1.3, --years 2, "
    "--buy-price 7777, --own-count 9, --opex-per-month 300, --kwh-price 0.3, --pue 1.5, --colo 222, --staff 99, "
    "--support 12%, --server-overhead 2, --capital 15%, --residual 5%, --utilisation 60%, --rent-price 1.7, "
    "--provider runpod, --spot, --reserved 3y, --still, --country FR, --simple, --steps, --rules, --seed 7, "
    "--tokens 1B, --storage-price 1, --egress-gb 1, --tp 2, --lora"
)


@pytest.mark.thorough
@pytest.mark.parametrize("base", ["--hours 2000 --scenarios 50", "--hours 2000 --scenarios 50 --simple", "--rules"])
def test_an_option_of_cost_changes_the_answer_or_is_refused(gpuwise: Callable[..., Any], base: str) -> None:
    plain = ("cost", "--on", "4xl40s", "--json", *base.split())
    usual = gpuwise(*plain).out
    silent = []
    for option in OF_COST.split(", "):
        ran = gpuwise(*plain, *option.split()) if option not in base else None
        if ran is not None and ran.code != 2 and ran.out == usual:
            silent.append(option)
    assert silent == []


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("plan gpt9 --on 4090x --tokens abc", ["--tokens: 'abc'", "unknown model 'gpt9'", "unknown GPU or processor '4090x'"]),
        ("plan --on 4090x --tokens abc", ["needs a model", "--tokens: 'abc'", "unknown GPU or processor '4090x'"]),
        ("fit gpt9 --on 4090x --for sell", ["task of --for 'sell'", "unknown model 'gpt9'", "unknown GPU or processor '4090x'"]),
        ("capacity gpt9 --users x --rate y", ["--users: 'x'", "--rate: 'y'", "unknown model 'gpt9'"]),
        ("cost own --on h9 --hours abc --pue z", ["--hours: 'abc'", "--pue: 'z'", "unknown GPU or processor 'h9'"]),
        ("cost own --on h9 --hours abc --years z", ["--hours: 'abc'", "--years: 'z'", "unknown GPU or processor 'h9'"]),
    ],
)
@pytest.mark.parametrize("checker", ["", "pydantic"])
def test_three_wrong_values_give_three_messages(words: str, wrong: list[str], checker: str, gpuwise: Callable[..., Any]) -> None:
    """Where something has imported pydantic, cyclopts asks it for the type of each value."""
    if checker:
        importlib.import_module(checker)
    ran = gpuwise(*shlex.split(words), "--json")
    messages = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert ran.code == 2 and len(messages) == ran.err.count("hint: ") == 3
    assert all(any(part in message for message in messages) for part in wrong)
    faults = json.loads(ran.out)["faults"]
    assert [f"error: {f['error']}" for f in faults] == messages and all(f["hint"] for f in faults)


def test_one_wrong_value_gives_one_message(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("plan", "gpt2", "--on", "4090", "--tokens", "abc", "--json")
    assert ran.err.count("error: ") == 1 and set(json.loads(ran.out)) == {"error", "hint"}
