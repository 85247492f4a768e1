/* What valgrind is there to find: `faults invalid`, `faults lost`, and neither. */
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	char *volatile memory = malloc(8);
	int faulty = 0;

	if (argc != 2 || !memory)
		return 2;
	memset(memory, 0, 8);
	if (!strcmp(argv[1], "invalid"))
		faulty = ((volatile char *)memory)[8] == 'x';
	if (strcmp(argv[1], "lost"))
		free(memory);
	memory = NULL;
	return faulty;
}
