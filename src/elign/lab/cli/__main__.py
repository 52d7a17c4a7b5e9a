"""`python -m elign.lab.cli`."""

from elign.lab.cli.main import main

raise SystemExit(main())
