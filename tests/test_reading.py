"""What stands in a table is what is read: types by declaration or value, faults in one line."""

import gzip
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import mpmtl_run

from mpmtl.data import Table
from mpmtl.data.reading import Format, numbers, parsed, read_table
from mpmtl.data.schema import read_schema
from mpmtl.errors import InputError

PLAIN = "school,age,sex,score\na,11,f,1.5\na,12,m,2\nb,13,f,3\nb,11,m,2.5\nb,14,f,4\n"
LONG = "school,day,score\n" + "".join(f"s{i % 6},{50 + i % 9},{i % 7}.5\n" for i in range(60))


def rows_of(text, start="school"):
    """Lines of a table with a row of names before each: row names without a heading."""
    head, *body = text.splitlines()
    return "\n".join([head, *(f"{i},{line}" for i, line in enumerate(body))]) + "\n"


def table(tmp_path, content, **options):
    path = tmp_path / options.pop("file", "t.csv")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Table(**({"path": str(path), "task": "school", "target": "score"} | options))


# Faulty tables: one line with the cure, and the right reading with it


FAULTY = [
    (PLAIN.replace("\n", ",\n").replace("score,", "score"), {}, "the rows end with a separator"),
    (PLAIN.replace("\n", ",\n"), {}, "neither name nor values, .* dataset.drop=.'Unnamed: 4'"),
    (rows_of(PLAIN), {}, "has 5 fields and the heading 4, .* write the table without row names"),
    (
        "," + rows_of(PLAIN),
        {},
        "Unnamed: 0 has no name, as row numbers .*dataset.drop=.'Unnamed: 0",
    ),
    ("Unnamed: 0," + rows_of(PLAIN), {}, "column Unnamed: 0 has no name, as row numbers"),
    (PLAIN + "c,3\n", {}, "row 6 has 2 fields and the heading 4"),
    (PLAIN + "c,3,f,2,1\n" * 2, {}, r"row 6 has 5 fields and the heading 4 \(and 1 more\)"),
    (PLAIN.replace(",", ";"), {}, "give dataset.separator=semicolon"),
    (PLAIN.replace(",", "\t"), {}, "give dataset.separator=tab"),
    (PLAIN.replace(",", "|"), {}, "give dataset.separator=pipe"),
    ("school\na\nb\n", {}, "has one column only"),
    (PLAIN.replace(",11,", ',"51,3",'), {}, "'51,3' in row 1 is no .*dataset.decimal=comma"),
    (PLAIN.replace(",1.5", ',"1,5"'), {}, "column score: '1,5' in row 1 .*dataset.decimal=comma"),
    (  # 59 different ones are no levels
        "school,x,score\n" + "".join(f's{i % 3},"{i},5",{i}\n' for i in range(59)),
        {},
        r"column x: '0,5' in row 1 is no finite number \(and 58 more\): .*dataset.decimal=comma",
    ),
    (PLAIN.replace("f", "é").encode("cp1252"), {}, "is not utf-8 .* dataset.encoding=cp1252"),
    (PLAIN.encode("utf-16-le"), {}, "dataset.encoding=utf-16"),
    (PLAIN + 'c,"3,f,2\n', {}, "cannot be read at line 7: unexpected end of data"),
    (PLAIN + ",3,f,2\n", {}, "column school names no task in 1 rows, such as row 6"),
    (PLAIN, {"file": "t.xlsx"}, ".xlsx files are not read, save the sheet as CSV"),
    (
        LONG.replace("s3,53,", "s3,<40,", 1),
        {},
        "column day: '<40' in row 4 is no finite number: correct it, or count it as a gap "
        r"\(dataset.missing\), or declare its levels",
    ),
    (LONG.replace("s3,53,", "s3,<40,", 1), {"ranges": {"day": [0, 99]}}, "'<40' in row 4"),
    (LONG.replace("s3,53,", "s3,<40,", 1), {"numbers": ["day"]}, "'<40' in row 4"),
    (LONG.replace(",3.5\n", ",1e999\n"), {}, "column score: '1e999' in row 4 .*and 8 more"),
    (LONG.replace("s3,53,", "s3,-inf,", 1), {}, "'-inf' in row 4 is no finite number"),
    (LONG.replace("s3,53,", "s3,1_000,", 1), {}, "'1_000' in row 4 is no finite number"),
    (
        "school,name,score\n" + "".join(f"s{i % 6},pupil {i},{i % 7}\n" for i in range(60)),
        {},
        r"column name has 60 levels in 60 rows, such as 'pupil 0' \(names\? dates\?\): add it to",
    ),
    (
        PLAIN,
        {"levels": {"sex": ["F", "m"]}},
        "levels.sex: 'F' occurs in no row .*holds 'f' instead",
    ),
    (PLAIN, {"levels": {"sex": ["f", "m", "x"]}}, "levels.sex: 'x' occurs in no row: correct"),
    (PLAIN, {"ranges": {"age": [0, 1]}}, r"5 of 5 values are outside \(11 to 14\): correct the"),
    (PLAIN, {"target_range": [10, 20]}, r"5 of 5 values are outside \(1.5 to 4\)"),
    (PLAIN, {"encoding": "latin9x"}, "encoding = latin9x: no such encoding"),
    (PLAIN, {"encoding": "hex"}, "encoding = hex: no such encoding"),
    (PLAIN, {"separator": "semi"}, "separator = semi: use comma, semicolon"),
    (PLAIN, {"decimal": ";"}, "decimal = ;: use point or comma"),
    (PLAIN, {"tasks": ["a", "a"]}, "names a task twice"),
    (PLAIN, {"n_public": [2, 1]}, r"n_public = \[2, 1\]: give it as \[least, most\]"),
    (PLAIN, {"n_public": ["a", 1]}, "give it as .least, most"),
    (PLAIN, {"n_public": [1, 1]}, r"n_public = \[1, 1\]: tasks have 1 to 2 training rows"),
    (PLAIN, {"numbers": ["sex"], "levels": {"sex": ["f", "m"]}}, "column sex is declared twice"),
    (PLAIN, {"task": None}, "task has no value: give the name of a column"),
]


@pytest.mark.parametrize(("content", "options", "message"), FAULTY)
def test_a_faulty_table_is_one_line_with_the_cure(content, options, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        table(tmp_path, content, **options).draw(None, 0, 0)
    assert "\n" not in str(caught.value)


CURED = [
    (PLAIN.replace(",", ";"), {"separator": "semicolon"}),
    (PLAIN.replace(",", ";"), {"separator": ";"}),
    (PLAIN.replace(",", "\t"), {"separator": "tab"}),
    (PLAIN.replace(",", " "), {"separator": "space"}),
    (PLAIN.replace(",", "\t"), {"file": "t.tsv"}),
    (PLAIN.replace(",", ";").replace(".", ","), {"separator": "semicolon", "decimal": "comma"}),
    (PLAIN.replace("f", "é").encode("cp1252"), {"encoding": "cp1252"}),
    (PLAIN.encode("utf-16"), {"encoding": "utf-16"}),
    (PLAIN.encode("utf-8-sig"), {}),
    (PLAIN.replace("\n", "\r\n"), {}),
    (PLAIN.replace(",", ' , "').replace(' , "f', ",f").replace('"', ""), {}),
    (PLAIN.replace("\n", "\n\n"), {}),
    ("," + rows_of(PLAIN), {"drop": ["Unnamed: 0"]}),
]


@pytest.mark.parametrize(("content", "options"), CURED)
def test_with_the_option_it_is_the_same_table(content, options, tmp_path):
    want = table(tmp_path, PLAIN).load(None)
    got = table(tmp_path, content, **options).load(None)
    assert got.task_names == want.task_names == ("a", "b")
    order = np.argsort([name.replace("é", "f") for name in got.feature_names])
    for A, B in zip(got.X, want.X, strict=True):
        np.testing.assert_array_equal(A[:, order], B[:, np.argsort(want.feature_names)])
    for A, B in zip(got.y, want.y, strict=True):
        np.testing.assert_array_equal(A, B)


# Types


def test_ids_and_levels_are_text(tmp_path):
    """1, 01 and 001 are three owners, a task may be called NA, and levels stay as written."""
    text = "school,grade,score\n"
    for i, owner in enumerate(["1", "01", "001", "NA", "1e0", "None"]):
        text += f"{owner},01,{i}\n{owner},1B,{i + 1}\n{owner},1,{i + 2}\n"
    data = table(tmp_path, text, levels={"grade": ["01", "1B", "1"]}).load(None)
    assert data.task_names == ("001", "01", "1", "1e0", "NA", "None")
    assert data.feature_names == ("grade=01", "grade=1B", "grade=1")
    for X in data.X:
        np.testing.assert_array_equal(X, np.eye(3))


@pytest.mark.parametrize("junk", ["unknown", "1.5", "", "NA", "1e400", "é", "2020-01-01", "True"])
@pytest.mark.parametrize(("column", "strict"), [("grade", True), ("grade", False), ("age", False)])
def test_a_value_of_one_task_changes_no_other_task(junk, column, strict, tmp_path, rng):
    """With all declared, whatever stands in a row: other tasks' rows are equal to the last bit."""
    n = 40
    frame = pd.DataFrame(
        {
            "school": np.arange(n) % 4,
            "grade": rng.integers(1, 4, n),
            "age": rng.integers(10, 20, n),
            "score": rng.standard_normal(n),
        }
    )
    declared = {"ranges": {"age": [10, 20]}, "levels": {"grade": [1, 2, 3]}, "indicators": ["age"]}
    declared |= {"kind": "regression", "target_range": [-4, 4], "strict": strict}
    want = table(tmp_path, frame.to_csv(index=False), **declared)
    frame = frame.astype(str)
    frame.loc[2, column] = junk
    got = table(tmp_path, frame.to_csv(index=False), **declared)
    assert got.caveats == want.caveats == ()
    for one, two in zip(want.draw(None, 0, 0), got.draw(None, 0, 0), strict=True):
        assert one.task_names == two.task_names
        for i in (0, 1, 3):
            np.testing.assert_array_equal(one.X[i], two.X[i])
            np.testing.assert_array_equal(one.y[i], two.y[i])
            assert one.recipes[i] == two.recipes[i]
    grades = [X[:, :3].sum(axis=1) for X in got.load(None).X]
    assert sum((g == 0).sum() for g in grades) == (column == "grade")


def test_numbers_are_read_one_by_one():
    """As Python reads them, to the last bit, whatever stands beside them."""
    texts = ["1", "-0.5", "1e3", ".5", "5.", "1E-3", "+2", "0.1", "123456789012345678901234567890"]
    want = [float(text) for text in texts]
    junk = ["0x10", "1_0", "inf", "nan ", "1,5", "--1", "1e", ".", "1e400", "٣", "5 kg", "True"]
    values = pd.Series([*texts, *junk, "", "NA"], name="x", dtype=object)
    got, bad = parsed(values, Format())
    np.testing.assert_array_equal(got[: len(texts)], want)
    np.testing.assert_array_equal(bad, [False] * len(texts) + [True] * len(junk) + [False] * 2)
    comma = pd.Series(["1,5", "2", "1.5"], name="x", dtype=object)
    got, bad = parsed(comma, Format(decimal="comma"))
    np.testing.assert_array_equal(got, [1.5, 2, np.nan])
    assert bad.tolist() == [False, False, True]
    assert np.isnan(numbers(comma, Format(), strict=False)[0])


def test_words_for_gaps_can_be_given(tmp_path):
    """A word that stands for a gap in numbers and targets; a declared level goes first."""
    text = PLAIN.replace("12,m,2", "<10,m,-9").replace("13,f", "13,-9")
    got = table(tmp_path, text, missing=["<10", "-9"], levels={"sex": ["f", "m", "-9"]})
    assert got.load(None).n_samples.tolist() == [1, 3]
    assert "1 of 5 rows left out: no score" in got.notes
    np.testing.assert_array_equal(got.load(None).X[1][:, 1:4], np.eye(3)[[2, 1, 0]])


def test_parquet_values_become_text_one_by_one(tmp_path):
    """Whole numbers with gaps are no floats; ids in a float column have no .0."""
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {
            "id": pd.array([1, None, 3], dtype="Int64"),
            "whole": [1.0, 2.0, np.nan],
            "x": [0.1, 1e-300, 2.5],
            "word": ["01", None, "NA"],
            "flag": [True, False, True],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    got = read_table(tmp_path / "t.parquet").frame
    assert got.id.tolist() == ["1", "", "3"]
    assert got.whole.tolist() == ["1", "2", ""]
    assert got.x.tolist() == ["0.1", "1e-300", "2.5"]
    assert got.word.tolist() == ["01", "", "NA"]
    assert got.flag.tolist() == ["True", "False", "True"]
    frame.set_index("word").to_parquet(tmp_path / "i.parquet")
    assert read_table(tmp_path / "i.parquet").frame.word.tolist() == ["01", "", "NA"]


# Tasks


def test_no_task_vanishes(tmp_path):
    """One class, one row, a constant target, no target at all: names and number stay."""
    text = "school,x,passed\n" + "".join(f"a,{i},{i % 2}\n" for i in range(6))
    text += "one class,1,1\none class,2,1\none row,1,0\nno row,1,\n"
    got = table(tmp_path, text, target="passed")
    data = got.load(None)
    assert data.task_names == ("a", "no row", "one class", "one row")
    assert data.n_samples.tolist() == [6, 0, 2, 1]
    assert any("1 with no row, 1 with one row, 1 with one class" in note for note in got.notes)
    declared = ["one row", "a", "absent", "no row", "one class"]
    got = table(tmp_path, text, target="passed", tasks=declared)
    assert got.load(None).task_names == tuple(declared)
    assert got.load(None).n_samples.tolist() == [1, 6, 0, 0, 2]
    assert any("2 with no row, 1 with one row, 1 with one class" in n for n in got.notes)
    train, test = got.draw(None, 0, 0)
    assert train.n_samples.tolist() == [1, 4, 0, 0, 1]
    assert all(np.isfinite(X).all() for X in (*train.X, *test.X))
    foreign = table(tmp_path, text, target="passed", tasks=["a"])
    assert "4 of 10 rows left out: a task that is not declared (tasks)" in foreign.notes
    assert foreign.load(None).task_names == ("a",)


def test_rows_are_bounded_in_public(tmp_path):
    """The norm that `method.eta=public` rests on is stated and holds, for extreme values too."""
    text = PLAIN + "b,1e300,f,1e300\nb,1e-300,m,2\n"
    declared = {"n_public": [1, 9], "norm": 2.5, "ranges": {"age": [0, 2e300]}}
    for rows, norm in (("unit", 1.0), ("clip", 2.5)):
        for options in (declared, {"n_public": [1, 9], "norm": 2.5}):
            for bound, one in ((norm, False), (np.hypot(norm, 1), True)):
                got = table(tmp_path, text, rows=rows, intercept=one, **options)
                for part in got.draw(None, 0, 0):
                    assert part.row_norm == pytest.approx(bound)
                    assert part.n_public == (1, 9)
                    longest = max(np.linalg.norm(X, axis=1).max() for X in part.X)
                    assert 0.7 <= longest <= bound + 1e-12


def test_all_rows_train(tmp_path):
    train, test = table(tmp_path, PLAIN, train_fraction=1).draw(None, 0, 0)
    assert train.n_samples.tolist() == [2, 3]
    assert test.n_samples.tolist() == [0, 0]


# What was understood


def test_notes_say_what_was_understood(tmp_path):
    text = LONG.replace("s3,53,", "s3,NA,", 1).replace("s4,54,", "s4,99,", 1)
    text = text.replace(",1.5\n", ",\n", 1).replace("day,", "day,name,").replace("\ns", "\nx,s")
    text = text.replace("school,day,name,", "name,school,day,", 1)
    got = table(tmp_path, text, ranges={"day": [50, 60]}, drop=["name"], kind="regression")
    assert got.notes == (
        "6 tasks (school) with 9 / 10 / 10 rows (smallest / median / largest), 59 in all",
        "columns: 1 numbers (day); 2 features and an intercept",
        "59 of 60 rows are used",
        "1 of 60 rows left out: no score",
        "columns left out: name",
        "declared: ranges of day",
        "values out of range, clipped (of 59 rows): day 1",
        "gaps (of 59 rows): day 1",
        "read off all tasks' rows, not declared: mean and sd of score (target_range); "
        "that day has gaps (indicators)",
    )


def test_without_strict_misfits_are_counted(tmp_path):
    text = PLAIN.replace("b,13,f", "b,x,?")
    options = {"ranges": {"age": [0, 1]}, "levels": {"sex": ["F", "m"]}, "indicators": ["age"]}
    got = table(tmp_path, text, strict=False, kind="regression", **options)
    notes = " | ".join(got.notes)
    assert "none of the levels, 0 in all features (of 5 rows): sex 3" in notes
    assert "values out of range, clipped (of 5 rows): age 4" in notes
    assert "values that are no number, taken as gaps (of 5 rows): age 1" in notes
    assert got.load(None).X[1][0, :2].tolist() == [pytest.approx(np.nan, nan_ok=True), 1.0]


# Schema


NAMES = ["sex (f/m)", "a=b", "2020", "é: {x}", "- #", "'q\"", "null", "yes", "01"]


def test_columns_with_any_name_can_be_declared(tmp_path):
    """The draft of a schema, as it is, declares all of the table: no caveat, the same features."""
    n = 30
    frame = pd.DataFrame({"school": np.arange(n) % 3, "score": np.arange(n) / 7})
    for k, name in enumerate(NAMES):
        levels = np.array(["01", "1B", "no"], dtype=object)
        frame[name] = levels[(np.arange(n) + k) % 3] if k % 2 else (np.arange(n) * (k + 1)) % 11
    frame["who"] = [f"pupil {i}" for i in range(n)]
    frame.to_csv(tmp_path / "t.csv", index=False)
    done = mpmtl_run(
        *("t.csv", "--task", "school", "--target", "score", "--out", "s.yaml"),
        cwd=tmp_path,
        program="mpmtl-schema",
    )
    assert done.returncode == 0, done.stderr
    assert "who: drop  # 30 levels in 30 rows" in (tmp_path / "s.yaml").read_text()
    got = Table(path=str(tmp_path / "t.csv"), schema=str(tmp_path / "s.yaml"))
    assert got.caveats == ()
    want = [f"{n}={v}" if k % 2 else n for k, n in enumerate(NAMES) for v in ["01", "1B", "no"]]
    assert got.load(None).feature_names == tuple(dict.fromkeys(want))
    assert "declared: ranges of" in " ".join(got.notes)
    again = mpmtl_run("t.csv", "--out", "s.yaml", cwd=tmp_path, program="mpmtl-schema")
    assert again.returncode == 2
    assert "s.yaml is there already" in again.stderr


SCHEMA = """
task: school
target: score
kind: regression
target_range: [0, 10]
missing: ["-9"]
columns:
  age: {range: [10, 20], gaps: true}
  sex: {levels: [f, m]}
  day: number
  who: drop
"""


def test_what_a_schema_declares(tmp_path):
    """Every entry; what is not in the file is left out, and the command line goes first."""
    (tmp_path / "s.yaml").write_text(SCHEMA)
    text = "who,school,age,sex,day,other,score\nx,a,11,f,3,1,2\ny,a,-9,m,4,1,3\nz,b,12,m,5,1,4\n"
    (tmp_path / "t.csv").write_text(text)
    got = Table(path=str(tmp_path / "t.csv"), schema=str(tmp_path / "s.yaml"), target_range=[2, 3])
    assert got.load(None).feature_names == ("age", "age missing", "sex=f", "sex=m", "day")
    assert np.concatenate(got.load(None).y).max() == 3
    assert "columns left out: who, other" in got.notes
    assert got.notes[-1] == "read off all tasks' rows, not declared: mean and sd of day (ranges)"
    digest = got.digest
    (tmp_path / "s.yaml").write_text(SCHEMA + "\n")
    assert replace(got).digest != digest


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("columns:", "colums:", "unknown key colums: did you mean columns"),
        ("kind: regression", "kind: [a]", "give one word"),
        ("kind: regression", "kind: ordinal", "use auto, regression or binary"),
        ("[0, 10]", "[0]", r"target_range = \['0'\]: give it as \[low, high\]"),
        ("[0, 10]", "[a, b]", "give it as .low, high"),
        ("[10, 20]", "[20, 10]", "ranges.age = .20.0, 10.0.: give it as .low, high. with low <"),
        ("gaps: true", "gaps: maybe", "column age: gaps = maybe: use true or false"),
        ("gaps: true", "levels: [a]", "column age: use drop, number"),
        ("day: number", "day: float", "column day: use drop, number"),
        ("levels: [f, m]", "levels: f", "column sex: write"),
        ("levels: [f, m]", "levels: [f]", "levels.sex = .'f'.: give a list of at least two"),
        ("day: number", "dya: number", "features = dya: the table has no such column; did you"),
        ("task: school", "task: [", "is not YAML"),
        (SCHEMA, "a", "write it as mpmtl-schema does"),
        (SCHEMA, "task: a", "columns must be a mapping"),
        (SCHEMA, "columns: []", "columns must be a mapping"),
        ("  age:", "  a ge: number\n  a  ge: number\n  age:", "column a ge is declared twice"),
    ],
)
def test_a_faulty_schema_is_one_line(old, new, message, tmp_path):
    (tmp_path / "s.yaml").write_text(SCHEMA.replace(old, new))
    (tmp_path / "t.csv").write_text("school,age,sex,day,score\na,11,f,3,1\na,12,m,4,1\n")
    with pytest.raises(InputError, match=message) as caught:
        Table(path=str(tmp_path / "t.csv"), schema=str(tmp_path / "s.yaml")).load(None)
    assert "\n" not in str(caught.value)


def test_columns_are_declared_in_one_place(tmp_path):
    (tmp_path / "s.yaml").write_text(SCHEMA)
    with pytest.raises(InputError, match="drop is given beside schema = .*in that file only"):
        Table(path="t.csv", schema=str(tmp_path / "s.yaml"), drop=["age"])
    with pytest.raises(InputError, match=r"schema = nowhere.yaml: there is no such file"):
        Table(path="t.csv", schema="nowhere.yaml")


def test_a_draft_is_yaml_and_says_what_to_confirm(tmp_path):
    text = PLAIN.replace("b,14,f", "b,,f").replace(",", ";").replace(".", ",")
    with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
        file.write(text)
    done = mpmtl_run(
        *("t.csv.gz", "--task", "school", "--separator", "semicolon", "--decimal=comma"),
        cwd=tmp_path,
        program="mpmtl-schema",
    )
    assert done.returncode == 0, done.stderr
    assert "# 1 gaps, 3 values: levels?" in done.stdout
    content = yaml.safe_load(done.stdout)
    assert content["columns"]["age"] == {"range": [11, 13], "gaps": True}
    assert content["columns"]["sex"] == {"levels": ["f", "m"]}
    assert content["columns"]["score"] == {"range": [1.5, 4]}
    (tmp_path / "s.yaml").write_text(done.stdout)
    settings = read_schema(tmp_path / "s.yaml")
    assert settings["task"] == "school"
    assert "target" not in settings
    assert (settings["separator"], settings["decimal"]) == ("semicolon", "comma")
    for arguments, message in (
        (["none.csv"], "there is no such file"),
        (["t.csv.gz"], "give --separator=semicolon"),
        (["t.csv.gz", "--separator=;"], "give --decimal=comma|decimal commas need --decimal=comma"),
        (["t.csv.gz", "--separator=;", "--task=schol"], "did you mean school"),
    ):
        done = mpmtl_run(*arguments, cwd=tmp_path, program="mpmtl-schema")
        assert done.returncode == 2
        assert any(part in done.stderr for part in message.split("|")), done.stderr
        assert done.stderr.count("\n") == 1
