"""Tree ensembles of XGBoost, LightGBM, CatBoost and scikit-learn."""
