from hypothesis import settings

# No deadline per example: on a shared machine, the time of one example varies too much.
settings.register_profile("onecurve", deadline=None)
settings.load_profile("onecurve")
