"""Boosted trees of LightGBM, XGBoost and CatBoost: grown, kept as members of a model, written as ONNX."""
