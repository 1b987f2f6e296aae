from hypothesis import settings

# The machine may be shared: how long one example takes says nothing.
settings.register_profile("onecurve", deadline=None)
settings.load_profile("onecurve")
