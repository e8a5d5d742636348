"""Real data files: where they come from, their checksums and paths."""

from pathlib import Path

from mpmtl.errors import InputError, require

_GITHUB = "https://raw.githubusercontent.com"

#: File below the data directory -> (public address, sha256).
REGISTRY = {
    "school/school.mat": (
        f"{_GITHUB}/jiayuzhou/MALSAR/fb9751594983df020ddc4f7e4a40520ee7c37989/data/school.mat",
        "57fb3238fdd03a9aa17276e2ce18d9bbb5d128c3261e794fe6233b58b6909068",
    ),
    "landmine/LandmineData.mat": (
        f"{_GITHUB}/daizhongxiang/Federated_Bayesian_Optimization/"
        "30a4548606f2ae9bc62c6bf0eb4110177aa3876a/LandmineData.mat",
        "2163ab20a80e33a8b65593c48cf283c540599dcb291105e63fa4af2ce24c2bea",
    ),
    "lsoa2/data_processed_LSOAII.mat": (
        f"{_GITHUB}/liangjian12/HERMIT/91463add43245329d821656e80f1948c74ecbd97/data/LSOAII/"
        "data_processed_LSOAII.mat",
        "2880e8763a7f3c8b1ba3f85f76e8a25e1defdef8c4c0108892921c470587ba93",
    ),
    "lsoa2/feature_description_LSOAII.mat": (
        f"{_GITHUB}/liangjian12/HERMIT/91463add43245329d821656e80f1948c74ecbd97/data/LSOAII/"
        "feature_description_LSOAII.mat",
        "4e65531aadddd3c8afc9beafc68f8d9fe0946fe60c9d3e0a27430755756be50a",
    ),
    "lsoa2/task_description_LSOAII.mat": (
        f"{_GITHUB}/liangjian12/HERMIT/91463add43245329d821656e80f1948c74ecbd97/data/LSOAII/"
        "task_description_LSOAII.mat",
        "1a4418833f55d67816553bfc560602752f93de7e8451a07917ff3dfb2346e332",
    ),
}


def locate(data_dir, name):
    """Path of a registered file that is present and has the registered checksum."""
    path = Path(data_dir) / name
    require(
        path.is_file(),
        f"data file {path} is missing: run `make data` (or set data_dir or MPMTL_DATA_DIR)",
    )
    import pooch  # here, like scipy.io: only real data need them, and they take long to import

    try:
        digest = pooch.file_hash(str(path))
    except OSError as error:
        raise InputError(f"data file {path} cannot be read: {error.strerror}") from error
    require(
        digest == REGISTRY[name][1],
        f"data file {path} is damaged or another version (its sha256 is {digest[:12]}..., "
        f"expected {REGISTRY[name][1][:12]}...): delete it and run `make data`",
    )
    return path


def fetch(data_dir):
    """Download every registered file that is missing or damaged; returns the paths."""
    import pooch

    paths = []
    for name, (url, sha256) in REGISTRY.items():
        target = Path(data_dir) / name
        try:
            path = pooch.retrieve(
                url, known_hash=f"sha256:{sha256}", fname=target.name, path=target.parent
            )
        except (OSError, ValueError) as error:
            raise InputError(f"{target} could not be fetched from {url}: {error}") from error
        paths.append(Path(path))
    return paths


def read_mat(path, *names):
    """The named variables of a MATLAB 5 file."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=names)
        return [content[name] for name in names]
    except Exception as error:  # scipy raises almost anything for a damaged file
        raise InputError(f"{path} is not the expected MATLAB file: {error}") from error
