"""A few tasks of our own in each benchmark's layout, with images of a few pixels."""

import json

from PIL import Image

from local_bench.suites.ice_bench.tasks import METRICS_OF

MASKED = ("Inpainting", "Outpainting", "Virtual Try On", "Face Swap", "Subject-guided Inpainting")
REFERRED = ("Virtual Try On", "Face Swap", "Subject-guided Inpainting")
COLOURS = ["#b03030", "#30a050", "#3050b0", "#c0a020", "#803090", "#206070"]


def write_image(path, number=0, size=(64, 64)):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, COLOURS[number % len(COLOURS)])
    image.paste("white", (8 + number, 8, 24 + number, 30))
    image.save(path)
    return path


def hype(folder):
    """Three edits: of one image, of two, and one whose kind is a list."""
    tasks = [
        {"task_id": "mug-1", "input_images": ["001.png"], "task_type": "change", "instruction": "Paint the mug blue."},
        {"task_id": "two-1", "input_images": ["001.png", "002.png"], "task_type": "restructure"}
        | {"instruction": "Put the logo of the second picture on the first."},
        {"task_id": "list-1", "input_images": ["001.png"], "task_type": ["remove", "enhance"]}
        | {"instruction": "Take the shadow away."},
    ]
    for n, task in enumerate(tasks):
        task |= {"width": 4096, "height": 2048}
        for i, name in enumerate(task["input_images"]):
            write_image(folder / str(task["task_id"]) / name, n + i)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "public.json").write_text(json.dumps(tasks, indent=2))
    return folder / "public.json"


def ice(folder):
    """Five items: text alone, an edit, an edit in a mask, one by a reference, one by a depth map."""
    blank = {"SourceImage": "", "SourceMask": "", "ReferenceImages": [], "SourceCaption": "", "RegionBased": "0"}
    items = [
        {"ItemID": "i1", "Task": "Text2Image", "Instruction": "", "TargetCaption": "A red barn."},
        {
            "ItemID": "i2",
            "Task": "Color Editing",
            "Instruction": "Make <SOURCE> green.",
            "TargetCaption": "A green box.",
        }
        | {"SourceImage": "images/i2.png"},
        {"ItemID": "i3", "Task": "Local Subject Removal", "Instruction": "Remove the box.", "TargetCaption": "A wall."}
        | {"SourceImage": "images/i3.png", "SourceMask": "masks/i3.png"},
        {"ItemID": "i4", "Task": "Subject Reference Generation", "Instruction": "The thing of <REF_1> on a beach."}
        | {"TargetCaption": "A thing on a beach.", "ReferenceImages": ["images/i4.png"]},
        {"ItemID": "i5", "Task": "Depth-guided Generation", "Instruction": "A room.", "TargetCaption": "A room."}
        | {"SourceImage": "images/i5.png"},
    ]
    for n, item in enumerate(items):
        names = (item.get("SourceImage"), item.get("SourceMask"), *item.get("ReferenceImages", []))
        for k, name in enumerate(names):
            if name:
                write_image(folder / name, n + k)
    folder.mkdir(parents=True, exist_ok=True)
    levels = {"TaskLevel1": "L1", "TaskLevel2": "L2", "SourceImageType": "real"}
    (folder / "data.jsonl").write_text("".join(json.dumps(blank | levels | item) + "\n" for item in items))
    return folder / "data.jsonl"


def ice_whole(folder):
    """One item of each of the 31 tasks, with the images that the benchmark gives for it."""
    items = []
    for n, task in enumerate(METRICS_OF):
        created = task == "Text2Image" or task.endswith("Reference Generation")
        masked = task.startswith("Local ") or task in MASKED
        referred = "Reference" in task or task in REFERRED
        item = {
            "ItemID": f"t{n:02}",
            "Task": task,
            "TaskLevel1": "L1",
            "TaskLevel2": "L2",
            "RegionBased": str(int(masked)),
        }
        item |= {"SourceImageType": "real", "SourceCaption": "", "TargetCaption": f"A box, {task}."}
        item |= {"Instruction": "" if created else f"Do this to <SOURCE>: {task}."}
        item |= {"SourceImage": "" if created else write_image(folder / f"images/s{n}.png", n).name}
        item |= {"SourceMask": "", "ReferenceImages": ""}
        if item["SourceImage"]:
            item["SourceImage"] = f"images/{item['SourceImage']}"
        if masked:
            (folder / "masks").mkdir(exist_ok=True)
            mask = Image.new("L", (64, 64))
            mask.paste(255, (16, 16, 48, 48))
            mask.save(folder / f"masks/m{n}.png")
            item["SourceMask"] = f"masks/m{n}.png"
        if referred:
            item["ReferenceImages"] = [f"images/{write_image(folder / f'images/r{n}.png', n + 1).name}"]
        items.append(item)
    (folder / "data.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return folder / "data.jsonl"


def idea(folder, uids=("0024", "0063", "0014")):
    """A case for each uid: from text, from an image, and two images from text."""
    kinds = [("plain", 0, 1), ("relight", 1, 1), ("pair", 0, 2)]
    cases = [(name, uid, given, count) for uid, (name, given, count) in zip(uids, kinds, strict=False)]
    for n, (name, uid, given, count) in enumerate(cases):
        case = folder / f"{name}_0001"
        case.mkdir(parents=True)
        meta = {"task_name": name, "num_of_cases": 1, "image_reference": bool(given), "multi_image_reference": False}
        meta |= {"multi_image_output": count > 1, "uid": uid, "output_image_count": count, "case_id": "0001"}
        (case / "meta.json").write_text(json.dumps(meta))
        (case / "instruction.txt").write_text(f"Draw {name}.\n")
        inputs = [write_image(case / f"000{i}.jpg", n).name for i in range(1, given + 1)]
        outputs = [f"000{i}.jpg" for i in range(1, count + 1)]
        questions = [
            {"input_images": inputs, "output_images": outputs, "question": f"Is it {name}, {k}?"} for k in range(6)
        ]
        if count > 1:
            questions[0]["question"] = f"Is the number in the image the digit {count}?"
        (case / "auto_eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in questions))
    return folder


def rephrased(file):
    """What a judge might write about the cases of `idea`."""
    lines = [
        {"task_id": "relight_0001", "prompts": ["A lamp at dusk."]},
        {"task_id": "pair_0001", "prompts": ["A left shoe.", "A right shoe."], "judge": "somebody"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def servimage(folder):
    """Two orders as the authors have them: two images from text, and one edit of a photograph."""

    def order(name, price, subtasks, points):
        original = {"task_name_original": f"Order {name}", "requirements_original": f"The brief of {name}."}
        rules = {"visual_specs": {"aspect_ratio": "1:1", "dimensions": {"width": 1, "height": 1.5}}, "file_type": ["x"]}
        entries = [{"subtask": what, "rules": rules, "price_usd": "$1"} for what in subtasks]
        return {
            "task_id": name,
            "task_category": "C-" + name.partition("-")[0].capitalize(),
            "subcategory": "Some",
            "original_task_data": original | {"output_quantity": len(subtasks), "price_usd": price},
            "hard_rules": {"deliverables": entries},
            "soft_rules": {"points": [{"point_id": "ep_001", "point_requirement": p} for p in points]},
        }

    digital = folder / "C-Digital" / "Digital.json"
    portrait = folder / "C-Portrait" / "Portrait.json"
    for file, entry in (
        (digital, order("digital-001", 100.01, ["A logo", "A card"], ["It is blue", "It says Nord"])),
        (portrait, order("portrait-010", 5.42, ["A white ground"], ["The ground is white"])),
    ):
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps([entry], indent=2))
    write_image(folder / "C-Portrait" / "inputs" / "task_10" / "1.png", 1)
    write_image(folder / "C-Digital" / "refs" / "task_001" / "1.png", 2)
    return folder
