"""Models of scikit-learn, converted by skl2onnx with its defaults (a ZipMap behind each classifier) and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from benchmarks.zoo.model import CreatedModel, Export

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "sk_logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "sk_forest": lambda: RandomForestClassifier(10, max_depth=4, random_state=0),
    "sk_boosting": lambda: GradientBoostingClassifier(n_estimators=5, random_state=0),
    "sk_svc": lambda: SVC(probability=True, random_state=0),
    "sk_mlp": lambda: MLPClassifier((16,), max_iter=50, random_state=0),
    "sk_neighbors": lambda: KNeighborsClassifier(3),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "sk_ridge": Ridge,
    "sk_svr": SVR,
    "sk_boosting_regressor": lambda: GradientBoostingRegressor(n_estimators=5, random_state=0),
    "sk_pca_kmeans": lambda: make_pipeline(PCA(3), KMeans(3, n_init=1, random_state=0)),
}


def list_exports() -> Iterator[Export]:
    """Yield every model; classifiers as skl2onnx converts them by default, two of them without ZipMap too."""
    for name in CLASSIFIERS:
        yield Export(name, "scikit-learn", partial(_make, name, True), 1e-4)
    for name in ("sk_logistic", "sk_forest"):
        yield Export(f"{name}_arrays", "scikit-learn", partial(_make, name, False), 1e-4)
    for name in OTHERS:
        yield Export(name, "scikit-learn", partial(_make, name, False), 1e-4)


def _make(name: str, zipmap: bool) -> CreatedModel:
    from skl2onnx import to_onnx

    random = np.random.default_rng(0)
    features = random.normal(size=(120, 6)).astype("float32")
    is_classifier = name in CLASSIFIERS
    target = (
        (features[:, 0] + features[:, 1] > 0).astype(int) + (features[:, 2] > 0.3) if is_classifier else features @ np.arange(6)
    )
    model = (CLASSIFIERS | OTHERS)[name]().fit(features, target)
    options = {id(model): {"zipmap": zipmap}} if is_classifier else None

    def write(path: Path) -> None:
        path.write_bytes(to_onnx(model, features[:1], options=options, target_opset=18).SerializeToString())

    calls = [random.normal(size=(size, 6)).astype("float32") for size in (4, 9)]
    if is_classifier:
        expected = [[model.predict(x), model.predict_proba(x).astype("float32")] for x in calls]
    elif hasattr(model, "transform"):
        expected = [[model.predict(x), model.transform(x).astype("float32")] for x in calls]
    else:
        expected = [[model.predict(x).astype("float32").reshape(-1, 1)] for x in calls]
    return CreatedModel(write, [{"X": x} for x in calls], expected)
