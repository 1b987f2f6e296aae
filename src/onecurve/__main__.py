from onecurve.cli import main

raise SystemExit(main())
