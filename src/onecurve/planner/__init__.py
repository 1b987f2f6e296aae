"""From a job and a cluster to a plan: traces the model, prices plans, searches, and explains the choice.

This package knows the job, the model on fake tensors and the predictor; it starts no processes and trains nothing. The
runtime gets only the plan, or a resolved plan (completion.py). Start with planner.py, which `onecurve plan` and a run
that plans by itself both use. traced_model.py holds the model on fake tensors, which job_costs.py, tensor_layouts.py
and pipeline_stages.py trace; advisor.py explains the choice; clusters.py and plan_choice.py read what the user asked
for.
"""
