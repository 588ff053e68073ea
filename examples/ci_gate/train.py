"""Train the model of this little project on German credit: loans.csv and loans.skops."""

from __future__ import annotations

import neuronfair

import pandas as pd
import skops.io
from sklearn.compose import make_column_transformer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

SWAPPED = {"male": "female", "female": "male"}


def main() -> None:
    """Train on every person twice, once with each sex, so that sex says nothing about the risk."""
    data = neuronfair.load_dataset("german")
    people = pd.DataFrame(data.domain.to_table(data.rows))
    risk = pd.Series([data.domain.target.classes[i] for i in data.labels], name="risk")
    people.assign(risk=risk).to_csv("loans.csv", index=False)
    words, numbers = list(people.select_dtypes(exclude="number")), list(people.select_dtypes("number"))
    model = make_pipeline(
        make_column_transformer((OneHotEncoder(), words), (StandardScaler(), numbers)),
        MLPClassifier((16,), alpha=1.0, early_stopping=True, max_iter=300, random_state=0),
    )
    both = pd.concat([people, people.assign(sex=people["sex"].map(SWAPPED))])
    model.fit(both, pd.concat([risk, risk]))
    skops.io.dump(model, "loans.skops")
    print(f"accuracy on the training rows: {model.score(people, risk):.1%}")


if __name__ == "__main__":
    main()
