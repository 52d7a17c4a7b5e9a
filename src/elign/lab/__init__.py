"""The bench: everything needed to reproduce and extend the paper, built on `elign`.

What is changed where:

    default of a setting                config/config.yaml, of a preset config/presets/, of a learner's or
                                        an aligner's option its class
    type and range of a setting         config/schema.py
    batch size of feature extraction    train.eval_batch_size in config/config.yaml; evaluation/features.py extracts
    seed of the class order             data.order in config/config.yaml, and ORDER_SEED in data/scenario.py (one test)
    a new learner, data set or method   one file in learners/, data/ or evaluation/methods/
    fields of a row of results          Row in evaluation/metrics.py; runs/run_dir.py writes and reads it
    the loop over tasks, over epochs    runs/launch.py, training/trainer.py
    names of the files of a run         runs/run_dir.py
    elign remember, elign repair        repairing/: checkpoints, class_folders, latent_cache, repair_job, repair_page
    corrections of other papers         evaluation/methods/rivals.py; their page: benchmarks/rivals.py
    formats of tables, figures, page    report/table.py, report/figures.py, report/templates/report.html
"""
