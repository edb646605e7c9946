from chaos.command import main

raise SystemExit(main())
