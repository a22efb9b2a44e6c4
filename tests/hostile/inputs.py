"""Valid inputs of every reader of files, and the command line that reads each: where the grammar of `values` begins."""

import csv
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from local_bench.suites.ice_bench.results import SEPARATOR
from local_bench.suites.idea_bench.results import HEADER
from tests.suites.benchmarks import layouts

EARLIER_RUN = Path(__file__).resolve().parent.parent / "data" / "earlier_run"


@dataclass(frozen=True)
class Input:
    """A file that a command reads; `base` writes the other files that the command needs."""

    name: str
    file: str
    """Relative to the working folder."""
    command: str
    data: Any
    """As JSON, which is YAML too; for JSON Lines the value of one line."""
    frame: tuple[str, str] = ("", "")
    """Text before and after the data."""

    def write(self, data: str | bytes) -> None:
        if isinstance(data, str):
            data = (self.frame[0] + data + self.frame[1]).encode("utf-8", "surrogatepass")
        Path(self.file).parent.mkdir(parents=True, exist_ok=True)
        Path(self.file).write_bytes(data)


def _task(**more: Any) -> dict[str, Any]:
    task = {"task_id": "mug", "category": "Product", "price_usd": 10, "title": "mug", "brief": "Draw it."}
    return task | {"deliverables": ["image 1"], "evaluation_points": ["It is there"]} | more


def write(file: str, data: Any) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(data if isinstance(data, str) else json.dumps(data))


_DATA = yaml.safe_load("""
CONFIG:
  name: t
  seed: 0
  suite: {name: servimage, path: tasks.jsonl, limit: 1, shard: 1/2, part: Product}
  models: [{card: imported, name: api, attempts: 1, imported: {images: made, cost_usd_per_image: '0.04'}}]
  judge: {card: tiny-qwen3-vl, protocol: json, base_url: 'http://127.0.0.1:9/v1', extra_args: [], max_tokens: 16,
          request_timeout_s: 1.0, transport: served}
  panel: []
  metrics: [entropy]
  acceptance: {brf: 3.0}
  settlement: {usd_per_hour: '1.79', usd_per_kwh: '0.3', api_usd_per_image: {api: '0.04'}}
  engine: {device: cpu, threads: 1, encodings_gb: 1.0, batch_size: 1}
CARD: {name: mine, role: generator, family: flux, title: Mine, source: {folder: weights}, licence: MIT,
       parameters_b: 1.0, vram_gb: 1.0, vram_by_phase_gb: {encode: 1.0}, pflop_per_image: 1.0,
       sampler: {height: 64, width: 64, num_inference_steps: 1, guidance_scale: 1.0},
       takes: {pictures: 1, max_aspect: 2.0}, architecture: {transformer: flux}, lora: {}}
PRICES: {gpus: {lab: {title: Lab, mid: {usd_per_hour: 1, source: s, date: '2026'}, matches: [CPU]}}}
ANNOTATION: {model: mini-kontext, task_id: print-01, deliverable: 1, attempt: 1, rater: a, brf: true, veq: 3, cns: null,
             overall: true, probability: 0.5, adjudication: false}
JUDGEMENTS:
  schema_version: 2
  dataset: public
  tasks_dir: tasks
  models: {M01: a}
  judgements: {mug-1: {M01: {001.webp: {judged_at: '2026-01-22T00:00:00+00:00', ms: 9, verdict: PASS}}}}
SERVIMAGE: {model: a, task_id: mug, category: Product, annotations: {subtask_1: true}}
SERVIMAGE_EACH: {model: a, task_id: mug, category: Product, subtask_idx: 0, subtask_name: subtask_1, label: 1, notes: ''}
SHEET_TASK: {task_id: mug, category: Product, price_usd: 10, deliverables: 1}
SHEET_SCORE: {model: a, task_id: mug, deliverable: 1, brf: 3, veq: 4, cns: null}
PUBLISHED_ORDER:
  task_id: task_1
  task_category: Digital
  subcategory: x
  original_task_data: {task_name_original: t, requirements_original: r, price_usd: 5}
  hard_rules: {deliverables: [{subtask: s, rules: {dimensions: 10x10 px, file_type: PNG}}]}
  soft_rules: {points: [{point_requirement: p}]}
MANIFEST: {task_id: mug, deliverable: 1, attempt: 1, file: mug.png, cost_usd: 0.04}
CAPTION: {image: a.png, caption: a red box}
ICE_ITEM: {ItemID: i1, Task: Text2Image, Instruction: '', TargetCaption: A red barn., SourceImage: '', SourceMask: '',
           ReferenceImages: [], SourceCaption: '', RegionBased: '0', TaskLevel1: L1, TaskLevel2: L2,
           SourceImageType: real}
HYPE_TASK: {task_id: mug-1, input_images: [001.png], task_type: change, instruction: Paint it., width: 1024, height: 512}
IDEA_META: {task_name: plain, num_of_cases: 1, image_reference: false, multi_image_reference: false,
            multi_image_output: false, uid: '0024', output_image_count: 1, case_id: '0001'}
RULES:
  visual_specs: {width_px: 64, min_height_px: 64, width_mm: 10.0, height_mm: 10.0, min_dpi: 72.0, aspect_ratio: '1:1'}
  file_type: [PNG]
  file_size: {max_bytes: 1000}
SLURM: {cpus_per_gpu: 4, mem_per_gpu_gb: 32, options: [--partition=gpu], setup: [module load x], time: '1:00:00',
        gpus: '--gres=gpu:{n}'}
""")
CONFIG, CARD, ANNOTATION, RULES = (_DATA[name] for name in ("CONFIG", "CARD", "ANNOTATION", "RULES"))
SERVIMAGE, JUDGEMENTS, SHEET_TASK = (_DATA[name] for name in ("SERVIMAGE", "JUDGEMENTS", "SHEET_TASK"))
WRITTEN = {"task_id": "mug", "points": ["a"], "changes": ["b"], "prompts": ["c"], "judge": "x", "rules": [RULES]}


def base() -> None:
    """Write the files that the inputs need, and a copy of a finished run, `own`."""
    shutil.copytree(EARLIER_RUN, "own")
    write("tasks.jsonl", _task())
    layouts.write_image(Path("made/mug.png"))
    layouts.write_image(Path("pictures/a.png"))
    Path("manifest").mkdir(exist_ok=True)
    layouts.write_image(Path("manifest/mug.png"))
    write("run.yaml", CONFIG)
    write("sheet/annotations.jsonl", SERVIMAGE)
    write("sheet/tasks.jsonl", SHEET_TASK)
    write("judgements.json", JUDGEMENTS)
    layouts.hype(Path("hype"))
    layouts.ice(Path("ice"))
    layouts.idea(Path("idea"))
    layouts.idea(Path("rated"), ["0024"])
    Path("rated/plain_0001/auto_eval.jsonl").unlink()  # of which eval.json takes the place
    write("manifest.yaml", CONFIG | {"models": [CONFIG["models"][0] | {"imported": {"images": "manifest/m.jsonl"}}]})
    write("written.yaml", CONFIG | {"suite": {"name": "servimage", "path": "tasks.jsonl", "written": "written.jsonl"}})
    write("plain.yaml", CONFIG | {"settlement": {}})


_EVAL = [{"input_images": [], "output_images": ["0001.jpg"], "question": f"Is it {k}?"} for k in range(6)]
_SHEET = "score servimage sheet/annotations.jsonl --tasks sheet/tasks.jsonl"
_MINE = "local-bench/models/mine.yaml"
_OF_REPOSITORY = {key: value for key, value in CARD.items() if key != "architecture"} | {"source": {"repo": "a/b"}}
_OWN_LABEL = SERVIMAGE | {"model": "mini-kontext", "task_id": "print-01"}
_OWN_CONFIG = yaml.safe_load((EARLIER_RUN / "run.yaml").read_text())
_IDEA_ROW = {"input_images": [], "output_images": ["0001.jpg"], "question": "Is it?"}
_HYPE_SCORE = {"model": "a", "task_id": "mug-1", "attempt": 1, "score": 0.5}

INPUTS = [
    Input("config plan", "c.yaml", "plan c.yaml --json", CONFIG),
    Input("config plan gpu", "c.yaml", "plan c.yaml --gpu a6000", CONFIG),
    Input("config doctor", "c.yaml", "doctor c.yaml --json", CONFIG),
    Input("config slurm", "c.yaml", "slurm c.yaml --nodes 1 --run-dir shards", CONFIG),
    Input("config generate", "c.yaml", "generate c.yaml --run-dir tasks.jsonl/x", CONFIG),
    Input("config fetch", "c.yaml", "models fetch c.yaml --json", CONFIG),
    Input("config of a run", "own/run.yaml", "ls . --json", _OWN_CONFIG),
    Input("config of a run, digest", "own/run.yaml", "digest own", _OWN_CONFIG),
    Input("card list", _MINE, "models list --json", CARD),
    Input("card show", _MINE, "models show mine --json", CARD),
    Input("card of a repository", _MINE, "models show mine --json", _OF_REPOSITORY),
    Input("prices", "local-bench/prices.yaml", "plan plain.yaml --set settlement.gpu=lab --json", _DATA["PRICES"]),
    Input("prices of others", "local-bench/prices.yaml", "plan plain.yaml --json", _DATA["PRICES"]),
    Input("slurm settings", "local-bench/slurm.yaml", "slurm run.yaml --nodes 1 --run-dir s", _DATA["SLURM"]),
    Input("tasks plan", "tasks.jsonl", "plan run.yaml --json", _task(rules=[RULES]), ("", "\n")),
    Input("tasks show", "o.jsonl", "suites show servimage --path o.jsonl --json", _task()),
    Input("published tasks", "bench/C-Digital/Digital.json", "suites show servimage --path bench --json", [_DATA["PUBLISHED_ORDER"]]),
    Input("ice tasks", "ice/data.jsonl", "suites show ice-bench --path ice/data.jsonl --json", _DATA["ICE_ITEM"]),
    Input("hype tasks", "hype/public.json", "suites show hype-edit-1 --path hype/public.json --json", [_DATA["HYPE_TASK"]]),
    Input("idea meta", "idea/plain_0001/meta.json", "suites show idea-bench --path idea --json", _DATA["IDEA_META"]),
    Input("idea eval", "rated/plain_0001/eval.json", "suites show idea-bench --path rated --json", _EVAL),
    Input("idea auto eval", "idea/plain_0001/auto_eval.jsonl", "suites show idea-bench --path idea --json", _IDEA_ROW, ("", f"\n{json.dumps(_IDEA_ROW)}" * 5)),
    Input("written", "written.jsonl", "plan written.yaml --json", WRITTEN),
    Input("manifest", "manifest/m.jsonl", "plan manifest.yaml --json", _DATA["MANIFEST"]),
    Input("score servimage", "sheet/annotations.jsonl", f"{_SHEET} --json", SERVIMAGE),
    Input("score servimage each", "sheet/annotations.jsonl", f"{_SHEET} --json", _DATA["SERVIMAGE_EACH"]),
    Input("score servimage tasks", "sheet/tasks.jsonl", f"{_SHEET} --json", SHEET_TASK),
    Input("score servimage scores", "s.jsonl", f"{_SHEET} --scores s.jsonl --json", _DATA["SHEET_SCORE"]),
    Input("score servimage costs", "costs.json", f"{_SHEET} --costs costs.json --json", {"a": 0.1}),
    Input("score hype", "judgements.json", "score hype-edit-1 judgements.json --json", JUDGEMENTS),
    Input("score hype scores", "s.jsonl", "score hype-edit-1 judgements.json --scores s.jsonl --json", _HYPE_SCORE),
    Input("score hype costs", "costs.json", "score hype-edit-1 judgements.json --costs costs.json --json", {"a": 0.1}),
    Input("reproduce", "sheet/annotations.jsonl", "reproduce servimage table-2 sheet/annotations.jsonl --tasks sheet/tasks.jsonl", SERVIMAGE),
    Input("people agreement", "people.jsonl", "agreement own --people people.jsonl --json", ANNOTATION),
    Input("people settle", "people.jsonl", "settle own --people people.jsonl", ANNOTATION),
    Input("import labels", "sheet/annotations.jsonl", "import servimage sheet/annotations.jsonl --run own --labels l.jsonl", _OWN_LABEL),
    Input("captions", "captions.jsonl", "measure pictures --metrics entropy --captions captions.jsonl", _DATA["CAPTION"]),
]  # fmt: skip


ICE_METRICS = {"aesthetic": 0.5, "imaging": None}
IDEA_CELLS = ["plain", "0024", "0001", "1", "Is it?", "x/0001.jpg", *('{"score": 1}', "1", "so") * 3]


def ice_line(metrics: str, item: str = "i1", task: str = "Text2Image") -> str:
    """A line of ICE-Bench's eval_result.txt."""
    return f"{item}{SEPARATOR}{task}{SEPARATOR}{metrics}\n"


def idea_sheet(cells: list[str]) -> str:
    """IDEA-Bench's results CSV with one row."""
    buffer = io.StringIO()
    csv.writer(buffer).writerows([HEADER, cells])
    return buffer.getvalue()
