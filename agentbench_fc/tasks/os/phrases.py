"""The wordings of the generated problems: template -> several texts, with the fields that its maker fills.

>>> wording("nth_line", 0, {"path": "/srv/a.txt", "number": 7})
'What does line 7 of /srv/a.txt say? Answer with the whole line.'

Not here: the prompts around them (tasks/os/task.yaml).
"""

from collections.abc import Mapping
from typing import Any

PHRASES: Mapping[str, tuple[str, ...]] = {
    # files
    "count_by_ending": (
        "How many files whose name ends in {ending} are in {folder}, at any depth? Answer with the number.",
        "Count the {ending} files in {folder} and all its subfolders. Answer with the number.",
    ),
    "total_size": (
        "How many bytes do the files directly in {folder} whose name ends in {ending} have together? Answer with "
        "the number.",
        "Add up the sizes, in bytes, of all {ending} files directly in {folder}. Answer with the number.",
    ),
    "largest_file": (
        "Which file in {folder} is the largest? Answer with its name, without the folder.",
        "Name the biggest file of {folder} (the name only, no folder).",
    ),
    "write_file": (
        "Make a file {path} that holds exactly this line: {line}",
        "There should be a file {path} with the single line: {line}",
    ),
    "rename_file": (
        "In {folder}, rename {old} to {new}. Leave everything else as it is.",
        "The file {old} in {folder} should be called {new}. Change nothing else.",
    ),
    "move_by_size": (
        "Move every file directly in {source} whose name ends in {ending} and that is larger than {limit} bytes to "
        "{target}. All other files stay.",
        "The {ending} files of {source} with more than {limit} bytes belong in {target}: move them there, and only "
        "them.",
    ),
    "newest_file": (
        "Of the files below {folder} whose name ends in {ending}, which was modified last? Answer with its full path.",
        "Find the {ending} file anywhere in {folder} with the latest modification time. Answer with the full path.",
    ),
    "file_with_word": (
        "Exactly one file below {folder} contains the word {word}. Answer with its full path.",
        "In which file of {folder} or its subfolders does the word {word} occur? Answer with the full path.",
    ),
    "empty_files": (
        "How many empty regular files, hidden ones included, are below {folder}? Answer with the number.",
        "Count the files of zero bytes in {folder} at any depth, hidden ones too. Answer with the number.",
    ),
    "link_release": (
        "{folder}/releases holds several versions. Make the symbolic link {folder}/current point at the folder of "
        "the highest version (v2.10 is above v2.9). Do not change the releases themselves.",
        "The link {folder}/current is outdated: let it point at the highest version in {folder}/releases, where "
        "numbers count as numbers (v10.0 is above v9.3). Leave the releases alone.",
    ),
    "same_content": (
        "One other file somewhere below {folder} has exactly the same content as {original}. Answer with its full "
        "path.",
        "Find the copy of {original} that lies under another name below {folder}. Answer with its full path.",
    ),
    "broken_links": (
        "Some symbolic links in {folder} point at files that do not exist. Delete those links and nothing else.",
        "Clean up {folder}: remove every dangling symbolic link, keep everything that works.",
    ),
    "delete_old": (
        "Delete all files below {folder} whose name ends in {ending} and that were last modified before the year "
        "{year}. Keep everything else.",
        "Every {ending} file in {folder}, at any depth, with a modification date before 1 January {year} has to go."
        " Nothing else may be removed.",
    ),
    "sum_over_index": (
        "{index} lists files, one a line, relative to its own folder; each of them holds one number. What is the "
        "sum of the numbers in the listed files? Answer with the number; 0 if none is listed.",
        "Each line of {index} names a file (relative to the folder of the index) with one number in it. Add these "
        "numbers up. Answer with the sum; 0 for an empty list.",
    ),
    # text
    "lines_with_word": (
        "How many lines of {path} contain the word {word}? Answer with the number.",
        "Count the lines in {path} with the word {word}. Answer with the number.",
    ),
    "column_sum": (
        "{path} is a CSV file with a header. What is the sum of the column {column}? Answer with the number.",
        "Add up all values of the column {column} in the CSV file {path}. Answer with the number.",
    ),
    "nth_line": (
        "What does line {number} of {path} say? Answer with the whole line.",
        "Answer with line number {number} of the file {path}.",
    ),
    "replace_word": (
        "Replace every {old} in {path} by {new}.",
        "In {path}, change {old} to {new} wherever it occurs, also twice in one line.",
    ),
    "frequent_word": (
        "{path} holds words separated by spaces and line ends. Which one occurs most often? Answer with the word.",
        "Find the most frequent word of {path}. Answer with it.",
    ),
    "best_of_town": (
        "In the CSV file {path}, which name has the highest {column} among the rows whose town is {town}? Answer "
        "with the name.",
        "Look at the rows of {path} with town {town}: whose {column} is the largest? Answer with the name.",
    ),
    "sort_unique": (
        "Write the lines of {path} to {target}, sorted in byte order, each of them once. Leave {path} as it is.",
        "Make {target}: the distinct lines of {path}, sorted as `LC_ALL=C sort` does. {path} must not change.",
    ),
    "distinct_values": (
        "How many different values are in column {column} of the tab-separated file {path}? Answer with the number.",
        "Count the distinct entries of column {column} in {path} (columns are separated by tabs). Answer with the "
        "number.",
    ),
    "rare_pair": (
        "Exactly one line of {path} occurs only once. Answer with that line.",
        "All lines of {path} are repeated, except one. Answer with that one.",
    ),
    "sum_where": (
        "In the CSV file {path}, add up {sums} over the rows whose town is {town} and whose {column} is greater "
        "than {bound}. Answer with the sum.",
        "Take the rows of {path} with town {town} and {column} above {bound}. What is the total of their {sums}? "
        "Answer with the number.",
    ),
    "join_files": (
        "{folder} holds items.csv and orders.csv. What are all ordered items of the group {group} worth together, "
        "that is price times count, added up over the orders? Answer with the number.",
        "Join orders.csv with items.csv in {folder}: what is the total of price times count over all orders for "
        "items of the group {group}? Answer with the number.",
    ),
    "json_lines": (
        "Each line of {path} is a JSON object. What is the sum of amount over the objects whose state is {state}? "
        "Answer with the number.",
        "Add up the field amount of all JSON lines in {path} that have the state {state}. Answer with the number.",
    ),
    "config_value": (
        "In the section [{section}] of {path}, set {key} to {new}. Change nothing else, in no other section either.",
        "The configuration {path} needs {key} = {new} in its section [{section}]; all the rest must stay as it is.",
    ),
    "median_value": (
        "The files ending in .val directly in {folder} hold one number a line. What is the median of all these "
        "numbers together? Answer with the number.",
        "Take all numbers of the .val files in {folder} together. Which one stands in the middle when they are "
        "sorted? Answer with it.",
    ),
    # permissions
    "set_mode": (
        "Give {path} the permissions {mode}.",
        "The mode of {path} should be {mode}. Set it.",
    ),
    "read_mode": (
        "What are the permissions of {path}, as three octal digits? Answer with them.",
        "Answer with the octal mode (three digits) of the file {path}.",
    ),
    "modes_of_tree": (
        "Give all regular files in {folder}, at any depth, the mode {file_mode}, and all folders, {folder} "
        "included, the mode {dir_mode}.",
        "Below {folder}, every regular file needs mode {file_mode}; {folder} itself and every folder in it need "
        "{dir_mode}.",
    ),
    "count_writable": (
        "How many regular files below {folder} may be written by others (that is, by everybody)? Answer with the "
        "number.",
        "Count the world-writable files in {folder} and its subfolders. Answer with the number.",
    ),
    "find_setuid": (
        "One file below {folder} has the setuid bit. Answer with its full path.",
        "Which file in {folder} or its subfolders runs with its owner's rights (setuid)? Answer with the full path.",
    ),
    "change_owner": (
        "Everything below {folder} that belongs to the user {old} shall belong to the user {new}. Do not touch what"
        " belongs to others.",
        "{old} has left: hand all files of {old} in {folder}, at any depth, over to {new}, and no others.",
    ),
    "readable_by_group": (
        "Make a group {group} with the members {inside}. Then let {path} belong to root and the group {group}, with"
        " mode 640, so that they can read it and {outside} cannot.",
        "{inside} must be able to read {path}, {outside} must not: create the group {group} for the two, give the "
        "file to that group (owner stays root) and set mode 640.",
    ),
    "shut_writable": (
        "Some files below {folder} may be written by everybody. Take that one permission away wherever it is set, "
        "and leave all other permissions as they are.",
        "Remove write permission for others from every file in {folder}, at any depth; no other permission bit may "
        "change.",
    ),
    "shared_folder": (
        "Turn {folder} into a shared folder of the group {group}: it belongs to that group, members may do "
        "everything and others nothing, new files inherit the group, and only owners may delete their files. Add "
        "{member} to the group.",
        "{member} joins the group {group}, which shares {folder}: set its group, mode rwx for owner and group, "
        "nothing for others, with setgid and sticky bit.",
    ),
    # users
    "number_of_user": (
        "What is the user number (uid) of {user}? Answer with the number.",
        "Answer with the uid of the user {user}.",
    ),
    "name_of_number": (
        "Which user has the number (uid) {number}? Answer with the name.",
        "Answer with the login name of the user whose uid is {number}.",
    ),
    "create_user": (
        "Create the user {user} with uid {number}, login shell {shell} and home folder {home}, which has to exist.",
        "Add a user {user}: number {number}, home {home} (create it), shell {shell}.",
    ),
    "join_group": (
        "Add the user {user} to the group {group}, without taking {user} out of any other group.",
        "{user} should also be a member of {group}. All other memberships stay.",
    ),
    "members_of_group": (
        "Who are the members of the group {group}? Answer with their names in alphabetical order, joined by commas,"
        " without spaces.",
        "List the members of {group}, sorted, separated by single commas.",
    ),
    "remove_user": (
        "Delete the user {user} together with the home folder.",
        "The account {user} and its home folder have to go. Other accounts stay.",
    ),
    "count_shell": (
        "How many accounts of this system have the login shell {shell}? Answer with the number.",
        "Count the users whose shell is {shell}. Answer with the number.",
    ),
    "highest_of_group": (
        "Of the members of the group {group}, who has the highest uid? Answer with the name.",
        "Find the member of {group} with the largest user number. Answer with the login name.",
    ),
    "retire_group": (
        "Nobody in the group {group} may log in any more: set the login shell of each of its members to {shell}. Do"
        " not change any other account.",
        "Set the shell of all members of {group} to {shell}, and of nobody else.",
    ),
    # processes
    "end_process": (
        "End the running process {name}. Leave the other processes and all files alone.",
        "Stop the process called {name}; do not delete anything and let the others run.",
    ),
    "option_of_process": (
        "The process {name} was started with an option {option}=VALUE. What is the value? Answer with it.",
        "Which value was given to {option} when the running process {name} was started? Answer with the value.",
    ),
    "variable_of_process": (
        "What is the value of the environment variable {variable} of the running process {name}? Answer with it.",
        "Answer with the value that {variable} has in the environment of the process {name}.",
    ),
    "folder_of_process": (
        "What is the current working directory of the running process {name}? Answer with the full path.",
        "In which folder does the process {name} run? Answer with the full path of its working directory.",
    ),
    "holder_of_file": (
        "A running process keeps {path} open. What is the process called? Answer with its name.",
        "Which process has the file {path} open? Answer with the name of the process.",
    ),
    "deleted_file": (
        "The file {path} was deleted, but the process {name} still has it open. What was the value after `secret=` "
        "in it? Answer with the value.",
        "{name} holds {path} open although the file is deleted. Recover it and answer with what follows `secret=`.",
    ),
    "restarted_process": (
        "The process {name} comes back whenever it is killed. See to it that it stays away. Leave unrelated "
        "processes alone.",
        "Something restarts {name} again and again. Stop {name} for good without harming other processes.",
    ),
    "ask_by_signal": (
        "When the process {name} receives the signal USR1, it writes a line `ticket VALUE` to {path}. Let it do so."
        " What is the value? Answer with it.",
        "Send USR1 to {name}; it then writes `ticket VALUE` into {path}. Answer with the value.",
    ),
    # archives
    "count_members": (
        "How many files ending in .txt does the archive {archive} hold? Answer with the number.",
        "Count the .txt files inside {archive}. Answer with the number.",
    ),
    "unpack_archive": (
        "Unpack {archive} into the new folder {target}.",
        "Create {target} and extract all of {archive} there.",
    ),
    "pack_folder": (
        "Pack the folder {folder} into the archive {archive}, so that the names in it begin with {name}/. Leave the"
        " folder itself as it is.",
        "Make an archive {archive} of the folder {folder} (names inside: {name}/…). The folder must stay.",
    ),
    "text_in_archive": (
        "What does the file {name} inside the archive {archive} say? Answer with its one line.",
        "Read {name} in {archive}. Answer with its content, a single line.",
    ),
    "size_unpacked": (
        "How many bytes do the .dat files in the archive {archive} have together when they are unpacked? Answer "
        "with the number.",
        "Add up the uncompressed sizes, in bytes, of all .dat files in {archive}. Answer with the number.",
    ),
    "nested_archive": (
        "{archive} holds an archive that holds another archive. In the innermost one is {name} with a line `code: "
        "VALUE`. Answer with the value.",
        "Dig through {archive}: archives in archives. Deep inside, {name} has a line `code: VALUE`. What is the value?",
    ),
    "unpack_some": (
        "Put all files ending in {ending} of the archive {archive} directly into {target}, without their folders, "
        "and nothing else.",
        "From {archive}, extract only the {ending} files into {target}, flat, so without subfolders.",
    ),
    "wrong_name": (
        "{path} is really an archive; its name hides of what kind. It contains {name}, which says `ticket VALUE`. "
        "Answer with the value.",
        "Find out what kind of archive {path} is, unpack it and read {name}. Answer with the value after `ticket`.",
    ),
    "changed_since_backup": (
        "{archive} is a backup of {folder}. Exactly one file was changed after it was made. Answer with the name of"
        " that file.",
        "Compare {folder} with its backup {archive}: which file has other content now? Answer with the file's name.",
    ),
    # scripting
    "combine_numbers": (
        "Write a bash script {path} that takes two whole numbers a and b as arguments and prints {factor} * a + b -"
        " {offset}.",
        "{path} shall be a bash script: called with two integers, it prints {factor} times the first plus the "
        "second minus {offset}.",
    ),
    "count_in_file": (
        "Write a bash script {path} that takes the name of a file and prints how many of its lines contain {word} "
        "(0 if none).",
        "{path} shall be a bash script that prints the number of lines with {word} in the file given as its argument.",
    ),
    "sum_of_column": (
        "Write a bash script {path} that reads lines from standard input, whose columns are separated by a "
        "{separator}, and prints the sum of column {column} (the first is 1).",
        "{path} shall be a bash script that adds up column {column} of its standard input and prints the sum. "
        "Columns are counted from 1 and separated by a {separator}.",
    ),
    "sort_arguments": (
        "Write a bash script {path} that takes whole numbers as arguments and prints those greater than {bound}, in"
        " {order} order, in one line, separated by a {separator} without spaces.",
        "{path} shall be a bash script that drops all arguments up to {bound} and prints the others in {order} "
        "numeric order, joined by a {separator}.",
    ),
    "reverse_words": (
        "Write a bash script {path} that prints each line of its standard input with its words in reverse order, "
        "joined by a {separator} instead of spaces.",
        "{path} shall be a bash script: for each input line it prints the words last to first, with a {separator} "
        "between them and no spaces.",
    ),
    "totals_by_key": (
        "Write a bash script {path}. Its standard input has lines KEY and NUMBER, separated by a {separator}. It "
        "prints KEY=TOTAL for every key whose numbers add up to at least {least}, sorted by key.",
        "{path} shall be a bash script that adds up the numbers of each key in its input (key, {separator}, number)"
        " and prints key=total lines, sorted by key, leaving out totals below {least}.",
    ),
    "checked_arguments": (
        "Write a bash script {path}. With exactly one argument, a whole number, it prints `{word} SQUARE`, the "
        "square of the number. With any other count of arguments it prints nothing on standard output and exits "
        "with status {code}.",
        "{path} shall be a bash script: given one integer, it prints {word}, a space and the integer squared; given"
        " none or several arguments, it ends with exit status {code} and prints nothing to standard output.",
    ),
    "mend_script": (
        "The bash script {path} should print {word} and {factor} times the sum of all its arguments, but it is "
        "broken in several ways. Repair it.",
        "{path} has bugs. It is meant to print {word}, a space, and the sum of all arguments multiplied by "
        "{factor}. Fix it.",
    ),
    "to_json": (
        "Write a bash script {path} that reads KEY=VALUE lines from standard input and prints them as one JSON "
        "object of strings, keys in input order, preceded by the key {key} with the script's argument as its value."
        ' Format: {{"a": "b", "c": "d"}}',
        '{path} shall be a bash script. It prints one JSON object in one line, like {{"a": "b", "c": "d"}}: first '
        "{key} with the first argument as value, then the KEY=VALUE pairs of the standard input in their order.",
    ),
    # logs
    "count_level": (
        "How many entries of the log {path} have the level {level} (the third column)? Answer with the number.",
        "Count the lines of {path} whose level, the third column, is {level}. Answer with the number.",
    ),
    "last_request": (
        "Which request does the last line with level ERROR in {path} name? Answer with what follows `request=`.",
        "Find the latest ERROR entry of {path} and answer with its request.",
    ),
    "busiest_address": (
        "From which address do most requests in {path} come? Answer with the address.",
        "Answer with the address that occurs most often in the access log {path}.",
    ),
    "bytes_of_status": (
        "In the access log {path}, the last two columns are status and bytes. How many bytes were sent with status "
        "{status} in all? Answer with the number.",
        "Add up the bytes (last column) of all lines in {path} whose status (last but one) is {status}. Answer with"
        " the number.",
    ),
    "within_hours": (
        "How many entries of {path} are from {first} or later, and before {last}? Answer with the number.",
        "Count the lines of {path} with a time from {first} (included) to {last} (excluded). Answer with the number.",
    ),
    "failing_users": (
        "How many different users have at least one failed login in {path}? Answer with the number.",
        "Count the distinct users with failed logins in the log {path}. Answer with the number.",
    ),
    "rotated_logs": (
        "{folder} holds {name}.log and its older, partly compressed parts. How many bytes did {user} transfer in "
        "all of them together? Answer with the number.",
        "Add up `bytes` of the user {user} over {name}.log and all its rotated parts in {folder}, compressed ones "
        "too. Answer with the number.",
    ),
    "slowest_job": (
        "{path} tells when jobs started and finished. Which finished job took the longest? Answer with its name.",
        "Find the job in {path} with the longest time from start to finish; jobs that did not finish do not count. "
        "Answer with the job.",
    ),
    "broken_in": (
        "In {path}, exactly one user had five or more failed logins directly before a successful one, counted for "
        "each user since the last success. Answer with that user.",
        "Someone guessed a password: find the user in {path} who logged in after at least five failed attempts in a"
        " row. Answer with the user name.",
    ),
    "merge_logs": (
        "Merge all logs of {folder} into {target}, ordered by time. Keep the logs, and leave no other file in "
        "{folder}.",
        "Write {target}: all lines of the logs in {folder}, sorted by their time. The logs themselves stay, and "
        "nothing else is added to the folder.",
    ),
}


def wording(template: str, number: int, fields: Mapping[str, Any]) -> str:
    """One of a template's wordings, filled in; the number may be any."""
    texts = PHRASES[template]
    return texts[number % len(texts)].format(**fields)
